"""What is around each job: its language, its time zone, its database connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from sqlite3 import Error
from typing import Any

import pytest
from asgiref.sync import SyncToAsync, sync_to_async
from django.db import ProgrammingError, connection, connections, models, transaction
from django.test.utils import override_settings
from django.utils import timezone, translation
from django.utils.translation import gettext_lazy
from redis import Redis

import forkq
from forkq import middleware, registry, testing
from forkq.contrib.django.connections import _of_master, leave_to_master
from forkq.errors import InvalidJob
from forkq.wire.payload import loads


@forkq.job(name="tests.contrib.django.Any")
def anything(_value: Any) -> None:
    """Only pushed."""


class Size(models.TextChoices):
    """A choice of a model's field."""

    SMALL = "s"


def pushed(redis: Redis) -> dict[str, Any]:
    payload: Any = redis.lindex("queue:default", 0)
    return loads(payload)


def run(job: dict[str, Any], inside: Callable[[], Any]) -> Any:
    """As a child runs it."""
    return middleware.server.run(job, inside)


def active() -> tuple[str | None, str]:
    return translation.get_language(), timezone.get_current_timezone_name()


@pytest.mark.usefixtures("project")
def test_language_and_time_zone_travel(redis: Redis) -> None:
    with translation.override("de"), timezone.override("Europe/Berlin"):
        anything.perform_async(1)
    assert run(pushed(redis), active) == ("de", "Europe/Berlin")
    anything.perform_async(1)
    assert run(pushed(redis), active) == ("en-us", "UTC")
    anything.set({"locale": "fr"}).perform_async(1)
    assert pushed(redis)["locale"] == "fr"


@pytest.mark.usefixtures("project")
def test_what_a_job_activates_ends_with_it() -> None:
    def leave_things_behind() -> None:
        translation.activate("fr")
        timezone.activate("Asia/Tokyo")

    with translation.override("de"):
        run({"locale": "de"}, leave_things_behind)
        assert active() == ("de", "UTC")
    run({}, leave_things_behind)
    assert run({}, active) == ("en-us", "UTC")


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    "name", ["xx-yy", "", 7, None, ["de"], "../../etc/passwd", "a" * 900, "\0"]
)
def test_names_that_the_project_does_not_know_do_no_harm(name: Any) -> None:
    """A payload may come from anywhere."""
    assert run({"locale": name, "timezone": name}, active) == ("en-us", "UTC")


@pytest.mark.usefixtures("project")
def test_without_internationalization_nothing_is_added(redis: Redis) -> None:
    with override_settings(USE_I18N=False, USE_TZ=False):
        anything.perform_async(1)
    assert not {"locale", "timezone"} & set(pushed(redis))


def test_model_instances_are_refused_with_the_remedy(project: Any) -> None:
    for value, remedy in (
        (project(pk=1), r"args\[0\] is a Site.*push its primary key"),
        ([{"who": project(pk=1)}], r"args\[0\]\[0\]\['who'\] is a Site.*push its primary key"),
        (project.objects.all(), "is a QuerySet.*list of primary keys"),
        (Size.SMALL, "is a Size.*pass its .value"),
        (gettext_lazy("x"), r"pass str\(value\)"),
    ):
        with pytest.raises(InvalidJob, match=remedy):
            anything.perform_async(value)


def test_a_connection_ends_with_its_job_unless_it_may_live(project: Any) -> None:
    """CONN_MAX_AGE."""
    run({}, project.objects.count)
    assert connection.connection is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(connection.settings_dict, "CONN_MAX_AGE", None)
        run({}, project.objects.count)
        kept = connection.connection
        run({}, project.objects.count)
        assert kept is not None is not connection.connection is kept


def test_a_connection_ends_with_the_hook_or_handler_that_opened_it(project: Any) -> None:
    """And each hook finds none that has been broken since."""
    assert registry.call_hook(project.objects.count) == 0
    assert connection.connection is None


@forkq.job(name="tests.contrib.django.Count")
async def count() -> None:
    """Only its name counts."""


def test_a_connection_that_breaks_fails_no_second_coroutine(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queries of all coroutines run in one thread of asgiref, whose connection lives on."""

    def answers(self: Any) -> bool:
        """That of SQLite never asks."""
        try:
            self.connection.execute("SELECT 1")
        except Error:
            return False
        return True

    monkeypatch.setattr(type(connections["default"]), "is_usable", answers)
    thread = ThreadPoolExecutor(1)
    monkeypatch.setattr(SyncToAsync, "single_thread_executor", thread)

    async def job() -> int:
        with middleware.server.around({"class": "tests.contrib.django.Count"}):
            found: int = await project.objects.acount()
            return found

    def of_thread() -> Any:
        return connections["default"].connection

    async def main() -> None:
        assert await job() == 0
        kept = await sync_to_async(of_thread)()
        assert await job() == 0
        assert await sync_to_async(of_thread)() is kept is not None
        await sync_to_async(kept.close)()  # as a restart of the database does
        with pytest.raises(ProgrammingError):
            await job()
        assert [await job(), await job()] == [0, 0]
        await sync_to_async(connections.close_all)()

    with thread:
        asyncio.run(main())


def test_a_job_that_a_test_runs_leaves_the_connections_of_the_test(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier test may have connected, and pytest-django forbids this one to ask a database."""
    project.objects.count()
    of_test = connection.connection

    def forbidden() -> None:
        raise RuntimeError("Database access not allowed")

    monkeypatch.setattr(connection, "ensure_connection", forbidden)
    with testing.fake() as jobs:
        anything.perform_async(1)
        assert jobs.drain() == 1
    with testing.inline():
        anything.perform_async(1)
    assert connection.connection is of_test is not None


def test_a_child_leaves_the_connections_of_its_master_alone(project: Any) -> None:
    """After a fork with ``preload``: closing one would end the master's session, too."""
    project.objects.count()
    of_master = connection.connection
    leave_to_master()
    project.objects.count()
    assert connection.connection is not of_master
    of_master.execute("SELECT 1").close()  # it still works
    while _of_master:
        _of_master.pop().close()


def test_a_transaction_that_was_left_open_ends_with_its_job(project: Any) -> None:
    """As a TimeLimit between two lines of Django's can leave it. Else the rows of the next job
    would never be committed."""

    def leave_open() -> None:
        transaction.atomic().__enter__()
        project.objects.create(domain="lost")

    run({}, leave_open)
    assert not connections["default"].in_atomic_block
    run({}, lambda: project.objects.create(domain="kept"))
    connections.close_all()
    assert [each.domain for each in project.objects.all()] == ["kept"]


def test_a_job_within_the_transaction_of_a_test_leaves_it_alone(project: Any) -> None:
    with transaction.atomic():
        project.objects.create(domain="a")
        run({}, lambda: project.objects.create(domain="b"))
        assert project.objects.count() == 2
    assert project.objects.count() == 2
