"""Finds deployments for model names and calls them: retries, fallbacks, circuit breakers, context windows, prices."""
