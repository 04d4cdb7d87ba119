"""Renders a plan as messages, and says which log messages each of them stands for."""
