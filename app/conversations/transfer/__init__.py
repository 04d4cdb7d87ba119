"""Import and export of conversations; `formats` has a parser for each format."""
