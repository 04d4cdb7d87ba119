"""Deployments of a model: routes, retries, fallbacks, circuit breaker, windows and prices."""
