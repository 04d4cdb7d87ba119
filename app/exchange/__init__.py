"""One chat completion from recall to remembering. The only room that visits every other."""
