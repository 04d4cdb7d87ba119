"""What every request passes: limits, authentication, request ids, error responses, telemetry."""
