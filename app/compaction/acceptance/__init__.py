"""Whether an answer is a summary and keeps the facts, and the mechanical summary in its place."""
