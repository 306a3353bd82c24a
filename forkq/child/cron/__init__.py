"""Periodic jobs, as a child sees them."""
