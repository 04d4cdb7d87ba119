"""What the model is shown, what survives, and what it costs in tokens: instruments that drive the gateway over HTTP."""
