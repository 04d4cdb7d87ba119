"""Encrypts stored texts."""
