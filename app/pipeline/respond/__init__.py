"""Sends the answer to the client, whole or as a stream, with its context status."""
