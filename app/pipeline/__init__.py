"""One chat completion, from the request to the stored turn. The only room that visits every other."""
