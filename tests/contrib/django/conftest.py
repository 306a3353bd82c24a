"""A Django project inside of the test process. What forkq changes there ends with each test."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from django.apps import apps
from django.conf import settings
from django.db import connections
from redis import Redis

import forkq
from forkq import default_client, middleware, registry
from forkq.client import transactions
from forkq.config import provided
from forkq.wire import payload
from tests.support.server import Server

INSTALLED = ["forkq.contrib.django", "django.contrib.sites"]


def _set_up_django() -> None:
    """Once in a process: Django has no way back."""
    if settings.configured:
        return
    folder = Path(tempfile.mkdtemp(prefix="forkq-django-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    engine = "django.db.backends.sqlite3"
    settings.configure(
        INSTALLED_APPS=INSTALLED,
        DATABASES={
            alias: {"ENGINE": engine, "NAME": str(folder / alias)} for alias in ("default", "other")
        },
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        LOGGING_CONFIG=None,
        USE_TZ=True,
        TIME_ZONE="UTC",
        FORKQ={},
    )
    django.setup()
    from django.contrib.sites.models import Site  # noqa: PLC0415 - Django must be set up

    for alias in connections:
        with connections[alias].schema_editor() as editor:
            editor.create_model(Site)


@pytest.fixture
def project(redis_server: Server, redis: Redis) -> Iterator[Any]:
    """The model Site, with no rows, in a project whose jobs go to the shared server."""
    before = _state()
    _set_up_django()
    _restore(before)
    apps.get_app_config("forkq").ready()
    forkq.configure(redis_server.url, environ={})
    site = apps.get_model("sites", "Site")
    for alias in connections:
        site.objects.using(alias).all().delete()
    yield site
    connections.close_all()
    default_client.default().close()
    _restore(before)


def _state() -> tuple[Any, ...]:
    return (
        [*middleware.client.members],
        [*middleware.server.members],
        [*registry.handlers("fork")],
        [*registry.around_hooks],
        dict(payload.remedies),
        provided.source,
        default_client._default,
    )


def _restore(state: tuple[Any, ...]) -> None:
    (
        middleware.client.members[:],
        middleware.server.members[:],
        registry._events["fork"][:],
        registry.around_hooks[:],
        remedies,
        source,
        default_client._default,
    ) = state
    provided.use(source)
    payload.remedies.clear()
    payload.remedies.update(remedies)
    transactions.on_commit, transactions.held, transactions.all_wait = None, None, False
