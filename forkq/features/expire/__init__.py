"""Jobs that are worth nothing after a time: ``expires_in``."""
