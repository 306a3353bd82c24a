"""Runs in a child only, after the fork."""
