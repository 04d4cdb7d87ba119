"""How messages are found by their words, with and without an index."""
