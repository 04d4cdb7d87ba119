"""Builds each part of a process once, from the settings."""
