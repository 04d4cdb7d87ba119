"""Decides what a view shows. Input: outline, policy and budget. Output: a plan."""
