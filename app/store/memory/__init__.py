"""The store in a dict, for tests and throw-away use."""
