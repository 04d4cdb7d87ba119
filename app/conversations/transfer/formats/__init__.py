"""Parsers for exports of other programs, one file per format: they turn bytes into `ImportedConversation`s. Pure."""
