"""Finds messages by their words, with and without an index."""
