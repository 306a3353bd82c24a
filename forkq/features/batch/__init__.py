"""Batches: jobs that belong together, and the jobs that are pushed when all have ended."""
