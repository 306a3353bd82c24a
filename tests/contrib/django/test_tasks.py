"""The backend of Django's own tasks: real Redis, a real processor."""

from __future__ import annotations

import json
import logging
import types
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import django
import pytest
from django.db import transaction
from django.test.utils import override_settings
from django.utils import timezone
from redis import Redis

from tests.process.shared import payloads, waiting
from tests.support.server import Server

if django.VERSION < (6,):
    pytest.skip(
        "Django 6 is not installed, it needs Python 3.12: make test PYTHON=/path/to/python3.12",
        allow_module_level=True,
    )

from django.tasks import TaskContext, TaskResultStatus, task_backends
from django.tasks.base import Task
from django.tasks.exceptions import (
    InvalidTask,
    InvalidTaskBackend,
    TaskResultDoesNotExist,
    TaskResultMismatch,
)
from django.tasks.signals import task_enqueued, task_finished, task_started

from forkq.client import transactions
from forkq.contrib.django.tasks import job_options
from forkq.errors import Duplicate, ForkqError, InvalidJob
from tests.contrib.django.run_here import run_waiting

BACKEND = "forkq.contrib.django.tasks.ForkqBackend"
TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": {"retry": 1}}}


def add(first: int, second: int) -> int:
    return first + second


async def add_async(first: int, second: int) -> int:
    return first + second


def explode(text: str) -> None:
    raise ValueError(text)


def attempt(context: TaskContext[Any, Any], wanted: int) -> list[Any]:
    if context.attempt < wanted:
        raise RuntimeError("once more")
    return [context.attempt, context.task_result.id]


def unwritable() -> object:
    return object()


@pytest.fixture
def made(project: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes a task of a function of this module."""
    from django.tasks import task  # noqa: PLC0415 - it needs settings

    # pytest would keep the records, and with their tracebacks all of the child.
    monkeypatch.setattr(logging.getLogger("django.tasks"), "disabled", True)
    with override_settings(TASKS=TASKS):
        yield task


def refreshed(result: Any) -> Any:
    result.refresh()
    return result


def test_a_task_runs_and_has_a_result(made: Any, redis: Redis, redis_server: Server) -> None:
    for function in (add, add_async):
        result = made(function).enqueue(1, second=2)
        assert (result.status, result.is_finished) == (TaskResultStatus.READY, False)
        assert waiting(redis) == [result.id]
        run_waiting(redis_server)
        assert refreshed(result).status == TaskResultStatus.SUCCESSFUL
        assert (result.return_value, result.attempts, result.errors) == (3, 1, [])
        assert result.enqueued_at <= result.started_at <= result.finished_at
        assert 0 < redis.ttl(f"forkq:task:{result.id}") <= 86400


def test_a_failed_task_is_retried_and_then_has_failed(
    made: Any, redis: Redis, redis_server: Server
) -> None:
    result = made(explode).enqueue("broken")
    run_waiting(redis_server)
    assert refreshed(result).status == TaskResultStatus.READY  # it waits for its retry
    [retry] = payloads(redis, "retry")
    assert (retry["jid"], retry["error_class"]) == (result.id, "ValueError")
    run_waiting(redis_server)
    assert refreshed(result).status == TaskResultStatus.FAILED
    assert (result.attempts, len(result.errors)) == (2, 2)
    assert result.errors[0].exception_class is ValueError
    assert result.errors[0].traceback.endswith("ValueError: broken\n")
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_the_context_counts_attempts(made: Any, redis_server: Server) -> None:
    result = made(takes_context=True)(attempt).enqueue(2)
    run_waiting(redis_server)
    run_waiting(redis_server)
    assert refreshed(result).return_value == [2, result.id]


def test_a_value_that_is_no_json_is_a_failure(made: Any, redis_server: Server) -> None:
    result = made(unwritable).enqueue()
    run_waiting(redis_server)
    assert "Unsupported type" in refreshed(result).errors[0].traceback


def test_a_queue_and_a_time(made: Any, redis: Redis) -> None:
    task = made(queue_name="mail")(add)
    assert waiting(redis, "mail") == [] != [jid := task.enqueue(1, 2).id]
    assert waiting(redis, "mail") == [jid]
    later = timezone.now() + timedelta(hours=1)
    result = task.using(run_after=later).enqueue(1, 2)
    assert redis.zcount("schedule", later.timestamp() - 1, later.timestamp() + 1) == 1
    assert task.get_result(result.id).task.run_after == later


def test_what_django_refuses_is_refused(made: Any) -> None:
    for changes in ({"priority": 3}, {"queue_name": "unknown"}):
        with pytest.raises(InvalidTask):
            made(add).using(**changes)
    with pytest.raises(TypeError, match="JSON does not know"):
        made(add).enqueue(object(), 1)
    result = made(add).enqueue(1, 2)
    with pytest.raises(TaskResultMismatch):
        made(explode).get_result(result.id)
    with pytest.raises(TaskResultDoesNotExist):
        made(add).get_result("123")


def test_a_call_that_does_not_fit_is_refused_where_it_is_made(made: Any, redis: Redis) -> None:
    """As a push of forkq's own: with the parameters, or with what to pass instead."""
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: made(add).enqueue(1), r"test_tasks\.add' takes \(first: '?int.*missing.*'second'"),
        (lambda: made(add).enqueue(1, second=2, third=3), "unexpected keyword argument 'third'"),
        (lambda: made(takes_context=True)(attempt).enqueue(), r"takes \(wanted: '?int"),
        (lambda: made(add).enqueue(timezone.now(), 1), r"args\[0\] is a datetime.*isoformat"),
        (lambda: made(add).enqueue(1, second=[{"at": timezone.now()}]), "datetime.*isoformat"),
    ]
    for call, problem in refused:
        with pytest.raises(InvalidJob, match=problem) as raised:
            call()
        assert isinstance(raised.value, TypeError)  # as Django's own backends raise
    assert not redis.keys("*")


def test_a_record_that_another_process_has_damaged_does_not_exist(made: Any, redis: Redis) -> None:
    result = made(add).enqueue(1, 2)
    for damaged in (b"[]", b"\xff", b"[" * 100_000, b'{"id": 1}'):
        redis.set(f"forkq:task:{result.id}", damaged)
        with pytest.raises(TaskResultDoesNotExist):
            made(add).get_result(result.id)


def test_on_commit(made: Any, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "all_wait", True)
    with transaction.atomic():
        result = made(add).enqueue(1, 2)
        assert not redis.keys("*")
    assert waiting(redis) == [result.id]
    assert made(add).get_result(result.id).status == TaskResultStatus.READY


def test_signals(made: Any, redis_server: Server) -> None:
    seen: list[str] = []

    def enqueued(**_more: Any) -> None:
        seen.append("enqueued")

    def started(task_result: Any, **_more: Any) -> None:
        seen.append(str(task_result.status))

    signals: dict[Any, Any] = {
        task_enqueued: enqueued,
        task_started: started,
        task_finished: started,
    }
    for signal, receiver in signals.items():
        signal.connect(receiver)
    try:
        made(add).enqueue(1, 2)
        run_waiting(redis_server)
    finally:
        for signal, receiver in signals.items():
            signal.disconnect(receiver)
    assert seen == ["enqueued", "RUNNING", "SUCCESSFUL"]


def test_without_results_the_tasks_run(made: Any, redis: Redis, redis_server: Server) -> None:
    none = {"default": {"BACKEND": BACKEND, "OPTIONS": {"result_ttl": 0, "retry": False}}}
    with override_settings(TASKS=none):
        assert not task_backends["default"].supports_get_result
        result = made(add).enqueue(1, 2)
        made(explode).enqueue("x")
        run_waiting(redis_server)
        assert (waiting(redis), redis.keys("forkq:task:*")) == ([], [])
        with pytest.raises(NotImplementedError):
            result.refresh()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"rety": 3}, r"TASKS\['default'\]\['OPTIONS'\]: there is no option 'rety'; use retry"),
        ({"queue": "mail"}, "there is no option 'queue'; write `queue_name` in @task"),
        ({"retry_on": [ValueError]}, "there is no option 'retry_on'; all errors are tried again"),
        ({"max_runtime": 5}, "it is of iterable jobs"),
        ({"retry": -1}, "`retry` is -1"),
        ({"result_ttl": "1d"}, "result_ttl is a whole number of seconds"),
    ],
)
def test_a_wrong_option_is_refused(made: Any, options: dict[str, Any], problem: str) -> None:
    with (
        override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}),
        pytest.raises(InvalidTaskBackend, match=problem),
    ):
        made(add)


def test_a_task_is_a_task(made: Any) -> None:
    assert isinstance(made(add), Task)


def greet() -> None: ...


def greet_all() -> None: ...


def test_two_tasks_of_one_name_in_one_module_are_refused(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first would run for both."""
    monkeypatch.setattr(greet_all, "__qualname__", "greet")
    made(greet)
    made(greet)
    with pytest.raises(ForkqError, match=r"test_tasks\.py:\d+\) and .*test_tasks\.py:\d+\)"):
        made(greet_all)


# Options of one task


def reindex(doc: int, version: int = 1) -> int:
    return version


def with_its_options(made: Any, **options: Any) -> Any:
    """The task ``reindex`` with these options."""
    function = types.FunctionType(reindex.__code__, globals(), "reindex", (1,))
    function.__qualname__ = "reindex"
    return made(job_options(**options)(function))


def test_a_unique_task_that_waits_is_what_a_second_call_returns(
    made: Any, redis: Redis, redis_server: Server
) -> None:
    """However its arguments are given. Once it has ended, the next call enqueues a new one."""
    unique = with_its_options(made, unique_for=60)
    first = unique.enqueue(7)
    again = [unique.enqueue(7, 1), unique.enqueue(doc=7), unique.enqueue(version=1, doc=7)]
    assert {result.id for result in again} == {first.id}
    assert unique.enqueue(8).id != first.id
    assert len(waiting(redis)) == len(list(redis.scan_iter("forkq:task:*"))) == 2
    run_waiting(redis_server)
    assert refreshed(again[0]).status == TaskResultStatus.SUCCESSFUL
    assert unique.enqueue(7).id != first.id


@pytest.mark.parametrize("by", [["doc"], lambda doc, version=1: doc], ids=["names", "a function"])
def test_some_arguments_of_a_task_count(made: Any, redis: Redis, by: Any) -> None:
    unique = with_its_options(made, unique_for=60, unique_by=by)
    assert unique.enqueue(7, 1).id == unique.enqueue(7, version=2).id != unique.enqueue(8, 1).id


@pytest.mark.parametrize("how", ["skip", "return", "raise", "replace", "latest"])
def test_a_task_says_what_a_duplicate_is(
    made: Any, redis: Redis, redis_server: Server, how: str
) -> None:
    """The newest task has a result of its own; else there is one record, of the first."""
    task = with_its_options(made, unique_for=60, unique_by=["doc"], on_duplicate=how)
    first = task.enqueue(7, 1)
    try:
        found = task.enqueue(7, 2).id
    except Duplicate as error:
        assert how == "raise"
        found = error.jid
    else:
        assert how != "raise"
    gives_way = how in ("replace", "latest")
    records = {f"forkq:task:{jid}".encode() for jid in (first.id, found)}
    assert set(redis.scan_iter("forkq:task:*")) == records
    assert len(records) == (2 if gives_way else 1)
    run_waiting(redis_server)
    assert task.get_result(found).return_value == (2 if gives_way else 1)
    ended = TaskResultStatus.READY if gives_way else TaskResultStatus.SUCCESSFUL
    assert refreshed(first).status == ended


def test_a_throttled_task_has_failed_and_was_not_enqueued(made: Any, redis: Redis) -> None:
    slow = with_its_options(made, throttle="1/hour", unique_by=["doc"])
    assert slow.enqueue(7).status == TaskResultStatus.READY
    left_out = slow.enqueue(7, 2)
    assert (left_out.status, left_out.is_finished) == (TaskResultStatus.FAILED, True)
    assert refreshed(left_out).errors[0].exception_class is Duplicate
    assert "it is throttled" in left_out.errors[0].traceback
    assert len(waiting(redis)) == 1


def test_other_options_of_a_task_are_in_its_job(made: Any, redis: Redis) -> None:
    """Before those of the backend. `once` is for the push alone."""
    task = with_its_options(made, expires_in=60, once=True, retry=7)
    result = task.enqueue(7)
    [job] = [json.loads(raw) for raw in redis.lrange("queue:default", 0, -1)]
    assert (job["retry"], job["jid"]) == (7, result.id)
    assert job["forkq"]["needs"].keys() == {"expires_at"}
    assert redis.exists(f"forkq:pushed:{result.id}")


def test_a_backend_has_the_options_of_all_its_tasks(made: Any, redis: Redis) -> None:
    options = {"unique_for": 60, "unique_by": ["first"]}
    with override_settings(TASKS={**TASKS, "u": {"BACKEND": BACKEND, "OPTIONS": options}}):
        task = made(add).using(backend="u")
        assert task.enqueue(1, 2).id == task.enqueue(1, 3).id
        with pytest.raises(InvalidJob, match=r"`unique_by` names 'first'.*doc, version"):
            made(reindex).using(backend="u").enqueue(7)
    assert len(waiting(redis)) == 1


def test_a_task_that_turns_out_to_be_a_duplicate_at_the_commit_has_failed(
    made: Any, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Callable[[], None]] = []
    monkeypatch.setattr(transactions, "all_wait", True)
    monkeypatch.setattr(transactions, "on_commit", held.append)
    unique = with_its_options(made, unique_for=60)
    first, second = unique.enqueue(7), unique.enqueue(7)
    for call in held:
        call()
    assert refreshed(first).status == TaskResultStatus.READY
    assert refreshed(second).status == TaskResultStatus.FAILED
    assert f"job {first.id} has the lock" in second.errors[0].traceback


def test_an_option_that_a_task_cannot_have_is_refused_where_it_is_written(made: Any) -> None:
    for options, match in (
        ({"queue": "mail"}, "no option 'queue'"),
        ({"uniqe_for": 5}, "'uniqe_for'; use unique_for"),
        ({"throttle": "often"}, "`throttle` is 'often'"),
        ({"throttle": "1/hour", "debounce": 5}, "`throttle` and `debounce`"),
    ):
        with pytest.raises(InvalidJob, match=match):
            job_options(**options)(reindex)
    with pytest.raises(InvalidJob, match="below @task, on the function"):
        job_options(unique_for=5)(made(reindex))
