"""Items: the units of OpenAI's Responses and Conversations APIs. A message of the log is a run of items, or can be
shown as one. Pure."""
