"""Erasure of items, redaction of messages, and retention of conversations."""
