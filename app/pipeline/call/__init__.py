"""Calls the upstream, recovers from overflows, and runs the search tool."""
