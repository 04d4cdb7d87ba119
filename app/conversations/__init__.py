"""Stored conversations looked at, corrected, erased and moved: what is done with them beside answering."""
