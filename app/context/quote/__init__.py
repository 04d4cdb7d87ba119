"""The choice of old passages for a new message."""
