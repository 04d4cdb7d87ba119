"""Chooses old passages for a new message."""
