"""Requests that come again: what makes two requests the same, who waits for which answer, what is given once more."""
