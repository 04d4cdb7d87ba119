"""The endpoints below `/v1/conversations`, and stored completions."""
