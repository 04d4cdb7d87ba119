"""Writes one summary by a model: prompts, request bodies, calls."""
