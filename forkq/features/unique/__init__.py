"""Unique jobs: one job holds a lock as long as it waits or runs, and no second one is pushed."""
