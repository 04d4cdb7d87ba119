"""Conversations, their turns and branches, and the log as people read it."""
