"""The answer on its way to the client: whole or as a stream, with its context status."""
