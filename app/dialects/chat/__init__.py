"""Chat Completions, OpenAI's protocol: the words of its messages, requests and answers."""
