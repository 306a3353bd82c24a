"""Flows: what an app calls. docs/internals.md, "The way of a flow"."""
