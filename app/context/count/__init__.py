"""Counts tokens of texts, tools, images and attachments, and reads the usage that a provider reports."""
