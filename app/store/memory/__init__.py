"""The store in memory, for tests and temporary use."""
