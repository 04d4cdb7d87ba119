"""OpenAI's protocol as providers speak it: requests, streams, deltas, overflow errors."""
