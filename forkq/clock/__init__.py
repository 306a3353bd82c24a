"""Runs in the clock only, after the fork."""
