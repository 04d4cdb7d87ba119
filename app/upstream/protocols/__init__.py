"""The protocol of a provider: requests, streams, deltas, overflow answers."""
