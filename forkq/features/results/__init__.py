"""The results of jobs."""
