"""Which conversation a request means, and what of the request is new."""
