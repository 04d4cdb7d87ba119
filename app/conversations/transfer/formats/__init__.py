"""Histories as other programs write them: bytes → `ImportedConversation`. Pure parsers, one file per format."""
