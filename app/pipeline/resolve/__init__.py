"""Finds the conversation of a request, and what of the request is new."""
