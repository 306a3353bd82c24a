"""Failed jobs: decide, and settle."""
