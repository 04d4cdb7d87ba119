"""The upstream call, the recovery from an overflow, and the loop of the search tool."""
