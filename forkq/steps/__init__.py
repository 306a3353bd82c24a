"""Durable steps of jobs: ``forkq.step`` and what belongs to it."""
