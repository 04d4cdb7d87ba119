"""Measures Concertina beside other gateways, and writes the figures and charts of `docs/comparison.md`."""
