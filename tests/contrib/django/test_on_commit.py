"""A push inside of a transaction leaves when it is committed, and never if it is rolled back."""

from __future__ import annotations

import asyncio
import contextlib
import unittest
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from django.apps import apps
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.http import HttpResponse
from django.test import AsyncClient, TestCase
from django.test.utils import override_settings
from django.urls import path
from redis import Redis

import forkq
from forkq import registry, testing
from forkq.errors import ForkqError, InvalidJob
from forkq.wire.payload import loads
from forkq.wire.times import now
from tests.process.shared import waiting


@forkq.job(name="tests.contrib.django.Mail")
def mail(_number: int) -> None:
    """Only pushed."""


class Report(forkq.Job, name="tests.contrib.django.Report"):
    """Only pushed."""

    def perform(self, number: int) -> None: ...


class RollBack(Exception):
    """Ends a transaction."""


@pytest.fixture
def always(project: Any) -> Iterator[Any]:
    """FORKQ_ON_COMMIT = True."""
    with override_settings(FORKQ_ON_COMMIT=True):
        yield project


@contextlib.contextmanager
def rolled_back(using: str | None = None, *, durable: bool = False) -> Any:
    with contextlib.suppress(RollBack), transaction.atomic(using=using, durable=durable):
        yield
        raise RollBack


def test_it_leaves_on_commit(project: Any, redis: Redis) -> None:
    with transaction.atomic():
        project.objects.create(domain="a")
        jids = [mail.perform_async_on_commit(1), Report.perform_async_on_commit(2)]
        assert waiting(redis) == []
    assert waiting(redis) == jids


def test_without_a_transaction_it_leaves_at_once(project: Any, redis: Redis) -> None:
    assert waiting(redis) == [] != [jid := mail.perform_async_on_commit(1)]
    assert waiting(redis) == [jid]


def test_a_rollback_drops_it(project: Any, redis: Redis) -> None:
    with rolled_back():
        mail.perform_async_on_commit(1)
    assert waiting(redis) == []


def test_a_savepoint_that_is_rolled_back_drops_its_own(project: Any, redis: Redis) -> None:
    with transaction.atomic():
        first = mail.perform_async_on_commit(1)
        with rolled_back():
            mail.perform_async_on_commit(2)
        with transaction.atomic():
            third = mail.perform_async_on_commit(3)
    assert waiting(redis) == [first, third]


def test_a_plain_push_does_not_wait(project: Any, redis: Redis) -> None:
    with rolled_back():
        jid = mail.perform_async(1)
    assert waiting(redis) == [jid]


def test_by_the_setting_each_push_waits(always: Any, redis: Redis) -> None:
    with rolled_back():
        mail.perform_async(1)
    with transaction.atomic():
        jids = [mail.perform_async(1), *mail.perform_bulk([(2,), (3,)]), Report.perform_async(4)]
        Report.perform_in(600, 5)
        assert waiting(redis) == []
        assert not redis.exists("schedule")
    assert waiting(redis) == jids
    assert redis.zcard("schedule") == 1


@pytest.mark.parametrize("how", ["skip", "return", "raise", "replace", "latest"])
def test_the_commit_finds_the_job_that_has_the_lock(
    project: Any, redis: Redis, monkeypatch: pytest.MonkeyPatch, how: Any
) -> None:
    """A push that is rolled back meets none, and takes the place of none."""
    monkeypatch.setattr(registry, "duplicate_handlers", [])
    told: list[tuple[Any, str]] = []
    forkq.on_duplicate(lambda job, holder: told.append((job["jid"], holder)))
    unique = mail.set(unique_for=60, on_duplicate=how)
    first = unique.perform_async(7)
    with rolled_back():
        unique.perform_async_on_commit(7)
    with transaction.atomic():
        second = unique.perform_async_on_commit(7)
        [lock] = redis.keys("forkq:unique:*")
        assert (redis.hget(lock, "next_jid"), told) == (None, [])
    assert waiting(redis) == [first]  # that entry runs the newest job of its lock
    gives_way = how in ("replace", "latest")
    assert redis.hget(lock, "next_jid") == (second.encode() if gives_way else None)
    assert told == ([] if gives_way else [(second, first)])


def test_two_databases_must_both_commit(project: Any, redis: Redis) -> None:
    """Whichever commits last."""
    with transaction.atomic(using="other"):
        with transaction.atomic():
            jid = mail.perform_async_on_commit(1)
        assert waiting(redis) == []
    assert waiting(redis) == [jid]
    with rolled_back("other"), transaction.atomic():
        mail.perform_async_on_commit(2)
    with transaction.atomic(using="other"), rolled_back():
        mail.perform_async_on_commit(3)
    assert waiting(redis) == [jid]


def test_only_the_other_database_has_a_transaction(project: Any, redis: Redis) -> None:
    with rolled_back("other"):
        mail.perform_async_on_commit(1)
    assert waiting(redis) == []


def test_the_job_is_checked_and_taken_at_once(project: Any, redis: Redis) -> None:
    """And its time in the queue begins with the commit."""
    with transaction.atomic():
        with pytest.raises(InvalidJob):
            mail.perform_async_on_commit(object())  # type: ignore[arg-type]
        mail.perform_async_on_commit(7)
        pushed_at = now()
    payload: Any = redis.lindex("queue:default", 0)
    assert loads(payload)["enqueued_at"] >= pushed_at >= loads(payload)["created_at"]


def test_a_test_case_captures_it(project: Any, redis: Redis) -> None:
    """In the transaction that TestCase makes around each test, of all its databases."""
    seen: dict[str, Any] = {}

    class Case(TestCase):
        databases = {"default", "other"}  # noqa: RUF012 - as Django has it

        def test_push(self) -> None:
            with self.captureOnCommitCallbacks(execute=True) as callbacks:
                seen["jid"] = mail.perform_async_on_commit(1)
                seen["before"] = waiting(redis)
            seen["callbacks"] = len(callbacks)

    result = unittest.TestResult()
    unittest.TestSuite([Case("test_push")]).run(result)
    assert (result.errors, result.failures) == ([], [])
    assert (seen["before"], seen["callbacks"], waiting(redis)) == ([], 1, [seen["jid"]])


def run_case(*tests: unittest.TestCase) -> None:
    result = unittest.TestResult()
    unittest.TestSuite(tests).run(result)
    assert (result.errors, result.failures) == ([], [])


def test_a_test_that_captures_nothing_hears_that_the_push_waits(always: Any) -> None:
    """And one that has captured it, and then misses another job, does not."""

    class Case(TestCase):
        def test_push(self) -> None:
            with testing.fake() as jobs:
                mail.perform_async(1)
                with pytest.raises(AssertionError, match=r"a transaction: 1;.*captureOn"):
                    jobs.enqueued(mail)
                with self.captureOnCommitCallbacks(execute=True):
                    mail.perform_async(2)
                jobs.enqueued(mail, args=[2])

        def test_captured(self) -> None:
            with testing.fake() as jobs:
                with self.captureOnCommitCallbacks(execute=True):
                    mail.perform_async(2)
                jobs.clear()
                with pytest.raises(AssertionError, match="no job is enqueued at all"):
                    jobs.enqueued(mail)

    run_case(Case("test_push"), Case("test_captured"))


def test_a_test_case_without_the_default_database_captures_it(project: Any, redis: Redis) -> None:
    class Case(TestCase):
        databases = {"other"}  # noqa: RUF012 - as Django has it

        def test_push(self) -> None:
            with self.captureOnCommitCallbacks(using="other", execute=True):
                mail.perform_async_on_commit(1)
                assert waiting(redis) == []

    run_case(Case("test_push"))
    assert len(waiting(redis)) == 1


# Where no transaction is open, no database is asked.


@pytest.fixture
def no_database(always: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while PostgreSQL is down, and as pytest-django has it for most tests."""

    def down(_connection: BaseDatabaseWrapper) -> None:
        raise AssertionError("a push has connected to the database")

    connections.close_all()
    monkeypatch.setattr(BaseDatabaseWrapper, "ensure_connection", down)


@pytest.mark.usefixtures("no_database")
def test_a_push_outside_of_a_transaction_asks_no_database(redis: Redis) -> None:
    with ThreadPoolExecutor(10) as threads:
        jids = list(threads.map(mail.perform_async, range(40)))
    jids.append(mail.perform_async_on_commit(1))
    assert sorted(waiting(redis)) == sorted(jids)


def test_a_transaction_by_hand_is_refused(always: Any, redis: Redis) -> None:
    """Nothing says when it ends, so the push would be lost or too early."""
    transaction.set_autocommit(False)
    try:
        always.objects.count()
        with pytest.raises(transaction.TransactionManagementError):
            mail.perform_async(1)
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert waiting(redis) == []


# Async code.


def test_an_async_view_pushes_at_once(always: Any, redis: Redis) -> None:
    """Django runs its queries in another thread; here none of its transactions is open."""

    async def view() -> str:
        async with ThreadSensitiveContext():  # as Django's handler: its thread ends with it
            await always.objects.acreate(domain="a")
            return await mail.aperform_async(1)

    assert waiting(redis) == [] != [jid := asyncio.run(view())]
    assert waiting(redis) == [jid]


async def sign_up(request: Any, number: int) -> HttpResponse:
    """A view that writes a row and pushes a job."""
    await apps.get_model("sites", "Site").objects.acreate(domain=f"d{number}")
    return HttpResponse(await mail.aperform_async(number))


urlpatterns = [path("<int:number>/", sign_up)]


@pytest.mark.parametrize("waits", [True, False], ids=["FORKQ_ON_COMMIT", ""])
def test_async_views_of_a_site_push_over_one_connection(
    project: Any, redis: Redis, waits: bool
) -> None:
    """Through Django's handler of requests, each with a thread of its own for its queries."""
    before = len(redis.client_list())

    async def main() -> set[str]:
        client = AsyncClient()

        async def get(number: int) -> Any:
            async with ThreadSensitiveContext():  # as under ASGI
                return await client.get(f"/{number}/")

        answers = await asyncio.gather(*(get(number) for number in range(20)))
        assert len(redis.client_list()) == before + 1
        await forkq.default_client.default().aclose()
        return {answer.content.decode() for answer in answers}

    with override_settings(ROOT_URLCONF=__name__, FORKQ_ON_COMMIT=waits, ALLOWED_HOSTS=["*"]):
        jids = asyncio.run(main())
    assert sorted(waiting(redis)) == sorted(jids)
    assert project.objects.count() == len(jids) == 20


def connect() -> None:
    """In the thread that runs the queries of a coroutine."""
    connections["default"].ensure_connection()


def push_from_a_coroutine(push: Callable[[int], str]) -> str:
    """Within a transaction of the thread that calls it."""

    async def view() -> str:
        await sync_to_async(connect)()
        return push(1)

    return async_to_sync(view)()


def test_a_coroutine_waits_for_the_transaction_around_it(always: Any, redis: Redis) -> None:
    """``async_to_sync`` runs it in another thread than the one that has the transaction."""
    with transaction.atomic():
        jid = push_from_a_coroutine(mail.perform_async)
        assert waiting(redis) == []
    assert waiting(redis) == [jid]
    with rolled_back():
        push_from_a_coroutine(mail.perform_async)
    assert waiting(redis) == [jid]


def test_a_connection_that_was_replaced_holds_no_push_of_a_coroutine(
    always: Any, redis: Redis
) -> None:
    """Something still refers to it, an error for example, and its transaction never ends."""
    connect()
    replaced = connections["default"]
    replaced.set_autocommit(False)
    del connections["default"]
    own = connections.create_connection("default")
    try:
        connect()
        own.connect()
        own.set_autocommit(False)
        jid = async_to_sync(mail.aperform_async)(1)
        assert waiting(redis) == [jid]
    finally:
        for each in (own, replaced):
            each.close()


def test_a_push_in_an_async_test_case_is_not_held(always: Any, redis: Redis) -> None:
    """captureOnCommitCallbacks does nothing there: it would look at the loop's own thread."""
    seen: list[str] = []

    class Case(TestCase):
        async def test_push(self) -> None:
            seen.append(await mail.aperform_async(1))

    run_case(Case("test_push"))
    assert waiting(redis) == seen != []


def test_an_awaited_push_waits_for_the_commit_around_it(always: Any, redis: Redis) -> None:
    """The thread that commits sends it; after a rollback nothing does."""

    async def push(number: int) -> str:
        return await mail.aperform_async(number)

    async def push_two() -> list[str]:
        return await mail.aperform_bulk([(3,), (4,)])

    with rolled_back():
        async_to_sync(push)(1)
    with transaction.atomic():
        jids = [async_to_sync(push)(2), *async_to_sync(push_two)()]
        assert waiting(redis) == []
    assert waiting(redis) == jids


def test_without_django_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkq.client.transactions, "on_commit", None)
    client = forkq.Client("redis://127.0.0.1:1/0")
    with pytest.raises(ForkqError, match=r"forkq\.contrib\.django.*INSTALLED_APPS"):
        client.push_on_commit({"class": "J", "args": []})


def test_a_job_says_nothing_of_itself_inside_a_transaction(project: Any) -> None:
    """It would be rolled back. The one that TestCase makes around a test is none of the job's."""

    class Case(TestCase):
        databases = {"default", "other"}  # noqa: RUF012 - as Django has it

        def test_say(self) -> None:
            assert forkq.Discard("fine").outcome == "discarded"
            with transaction.atomic(using="other"), pytest.raises(ForkqError, match='"other" is'):
                forkq.Snooze(30)

    run_case(Case("test_say"))
    assert forkq.Snooze(30).seconds == 30
    for make in (lambda: forkq.Snooze(30), forkq.Discard, forkq.Dead):
        with transaction.atomic(), pytest.raises(ForkqError, match="behind the `atomic` block"):
            make()
