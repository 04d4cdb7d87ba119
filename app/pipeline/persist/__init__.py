"""Writes the turn to the store."""
