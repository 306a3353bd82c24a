"""Waiting for keys to change."""
