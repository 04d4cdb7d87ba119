"""Simulated clients in front of the whole application: one process, a virtual clock, faults by seed."""
