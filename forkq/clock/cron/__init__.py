"""Periodic jobs, as the leader's clock enqueues them."""
