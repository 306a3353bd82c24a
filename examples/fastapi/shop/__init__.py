"""A shop that ships its orders in background jobs."""
