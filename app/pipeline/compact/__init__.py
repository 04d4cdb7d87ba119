"""Makes summaries for this turn, and ahead of the next one."""
