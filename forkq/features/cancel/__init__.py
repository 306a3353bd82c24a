"""Jobs that a person or the app cancels: ``forkq.cancel``."""
