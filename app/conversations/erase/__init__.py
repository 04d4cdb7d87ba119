"""Deletion, redaction and retention."""
