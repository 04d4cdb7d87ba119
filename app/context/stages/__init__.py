"""Ways to shorten a view: the stages, what they take and return, and when they run."""
