"""Long runs: `python -m tests.chaos` breaks everything for half an hour, `… soak` breaks nothing for an hour."""
