"""Durable steps: what a job has done already, and does not do again."""
