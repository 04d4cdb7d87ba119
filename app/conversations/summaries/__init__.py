"""Summaries as a resource with revisions, and compaction on request."""
