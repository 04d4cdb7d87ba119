"""Builds the view that the model gets: plan, messages, pins and quotations."""
