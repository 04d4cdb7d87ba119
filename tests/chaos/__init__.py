"""Long runs: `python -m tests.chaos` breaks everything for half an hour, `python -m tests.chaos soak` breaks nothing."""
