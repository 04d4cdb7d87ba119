"""Tokens of texts, tools, images and attachments, and what a provider reports."""
