"""What the children of ``flask forkq start`` import first: the Flask app, with its jobs."""

from __future__ import annotations

from forkq.config import provided

from .command import load_app

provided.use(None)  # the command has read it in a fork; a child must not fork for it
app = load_app()
