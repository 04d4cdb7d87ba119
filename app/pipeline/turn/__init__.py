"""What a turn is made of: its request, what the request is resolved to, its view and its answer, and the tools that all
steps share. Imports no step of the pipeline."""
