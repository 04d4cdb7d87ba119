"""HTTP clients for calls to providers: connections, TLS, compressed answers, time limits."""
