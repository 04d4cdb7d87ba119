"""The clients that carry calls: connections, TLS, compressed answers, time limits."""
