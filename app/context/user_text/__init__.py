"""User text: what the user said in the part of the log that a view hides, kept word for word. Pure."""
