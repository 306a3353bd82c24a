"""Iterable jobs: the cursor from which a job goes on."""
