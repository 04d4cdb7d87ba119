"""The steps that every request passes: limits, authentication, request ids, error responses, telemetry."""
