"""The turn is written to the store."""
