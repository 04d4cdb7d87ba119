"""The Messages API, Anthropic's protocol: the words of its messages, requests, answers and events."""
