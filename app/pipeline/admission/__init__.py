"""Which requests run, wait, or get the answer of an earlier request."""
