"""Import and export of conversations."""
