"""A log as items of OpenAI's Conversations API: reading, listing, adding and pinning items."""
