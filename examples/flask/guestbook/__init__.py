"""The web app of the guest book: the factory, the database and two views."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from flask import Blueprint, Flask, Response, current_app, jsonify, request

from forkq.contrib.flask import Forkq

from .jobs import answer

extension = Forkq()
pages = Blueprint("pages", __name__)


def create_app(config: Mapping[str, Any] | None = None) -> Flask:
    """The app. FLASK_DATABASE, FLASK_FORKQ_REDIS and the like configure it, or ``config``."""
    app = Flask(__name__)
    app.config.from_mapping(DATABASE="guestbook.db", FORKQ={"forkq": {"tag": "guestbook"}})
    app.config.from_prefixed_env()
    app.config.from_mapping(config or {})
    extension.init_app(app)
    app.register_blueprint(pages)
    with app.app_context(), closing(connect()) as database, database:
        database.execute(
            "create table if not exists entries "
            "(id integer primary key, name text, text text, answer text)"
        )
    return app


def connect() -> sqlite3.Connection:
    """The database of the current app."""
    connection = sqlite3.connect(current_app.config["DATABASE"], timeout=10)
    connection.row_factory = sqlite3.Row
    return connection


@pages.post("/entries")
def add() -> tuple[Response, int]:
    """Stores an entry, and then pushes the job that answers it."""
    given = request.get_json()
    with closing(connect()) as database, database:
        row = database.execute(
            "insert into entries (name, text) values (?, ?)", (given["name"], given["text"])
        )
    answer.perform_async(row.lastrowid or 0)
    return jsonify(id=row.lastrowid), 201


@pages.get("/entries")
def show() -> Response:
    """All entries."""
    with closing(connect()) as database:
        rows = database.execute("select * from entries order by id").fetchall()
    return jsonify([dict(row) for row in rows])
