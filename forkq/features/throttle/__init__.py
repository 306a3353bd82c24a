"""Jobs that are pushed so often at most: ``throttle``."""
