"""The Responses API, OpenAI's newer protocol: the words of its items, requests, responses and events."""
