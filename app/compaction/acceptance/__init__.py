"""Accepts or refuses a summarizer's answer, appends the values that it left out, and makes mechanical summaries."""
