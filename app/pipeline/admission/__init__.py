"""Decides whether a request runs, waits for a slot, or gets the answer of an earlier request."""
