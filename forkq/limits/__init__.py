"""The rules of queues: limits, rates, blocking, patterns. No Redis library."""
