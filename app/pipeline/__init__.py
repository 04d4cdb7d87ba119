"""Answers one chat completion, from the request to the stored turn."""
