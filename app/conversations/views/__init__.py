"""What the model would see of a conversation, and what it saw."""
