"""Checks of the server, the host and the app, for ``forkq doctor`` and ``forkq start``."""
