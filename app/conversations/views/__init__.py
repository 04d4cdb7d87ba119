"""The view of a conversation that would be sent now, and the views that were sent."""
