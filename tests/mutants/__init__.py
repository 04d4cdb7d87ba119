"""One-line mutations of what users depend on: each has to be noticed by the tests that stand beside it."""
