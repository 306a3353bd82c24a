"""The jobs of the guest book."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from flask import current_app

import forkq


@forkq.job(name="Answer")
def answer(entry: int) -> None:
    """Answers one entry. ``current_app`` is the app, as in a view."""
    with closing(sqlite3.connect(current_app.config["DATABASE"], timeout=10)) as database, database:
        database.execute(
            "update entries set answer = 'Thank you, ' || name || '!' where id = ?", (entry,)
        )
