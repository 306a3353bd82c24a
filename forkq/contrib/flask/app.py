"""What the children of ``flask forkq start`` import first: the Flask app, with its jobs."""

from __future__ import annotations

from forkq.config import framework

from .command import load_app

framework.give(None)  # the command has read them in a fork; a child must not fork for them
app = load_app()
