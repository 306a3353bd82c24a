"""Access to Redis: connections, scripts, and what more than one process does there."""
