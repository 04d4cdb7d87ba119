"""Histories as other programs write them: bytes → `Imported`. Pure parsers, one file per format."""
