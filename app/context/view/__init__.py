"""A plan as messages, and what each of the messages stands for."""
