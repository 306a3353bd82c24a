"""Runs in the master only."""
