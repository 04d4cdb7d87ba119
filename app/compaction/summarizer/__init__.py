"""One summary, written by a model: prompts, request bodies, calls."""
