"""The endpoints for operators: API keys, metrics, health."""
