"""What becomes of a job that failed."""
