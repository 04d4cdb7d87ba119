"""Conversations as records, their turns and branches, and their logs in a form for people to read."""
