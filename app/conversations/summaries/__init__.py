"""Summaries and their revisions, and compaction on request."""
