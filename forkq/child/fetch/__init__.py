"""Fetching jobs, for all processors of one child."""
