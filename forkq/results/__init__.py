"""Waiting for the results of jobs."""
