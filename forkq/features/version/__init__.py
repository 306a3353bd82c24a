"""Versions of jobs: their arguments change, and old jobs are run all the same."""
