"""Flows: steps that start one after the other, each once those before it have ended."""
