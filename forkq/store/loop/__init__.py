"""Pushes of event loops. Any process: an app pushes with it."""
