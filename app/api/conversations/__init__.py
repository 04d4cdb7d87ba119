"""The endpoints below `/v1/conversations`, and those for stored completions."""
