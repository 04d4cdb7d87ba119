"""Concertina: an OpenAI-compatible gateway whose conversations never outgrow the model's context window."""
