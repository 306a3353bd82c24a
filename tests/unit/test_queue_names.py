"""The name of a queue follows one rule wherever forkq writes it, and may be any text where it reads
it (tests/redis/test_hostile_names.py, tests/redis/test_queue.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import forkq
from forkq import registry
from forkq.api.changes import checked_queue
from forkq.config.capsule import parse_queue
from forkq.cron.entry import Entry
from forkq.errors import ConfigError, InvalidJob, InvalidSchedule
from forkq.wire.options import QUEUE_NAME

GOOD = ("default", "e-mail", "tenant:7", "v1.2_x", "0")
# No capsule can list them. A pattern may take their jobs, whoever pushed them.
BAD = ("", "a b", "a,2", "tenant-*", "a?", "[ab]", "a\n", "\u00fc", "a/b", "<b>")
RAW = {"class": "A", "args": []}


@pytest.fixture(autouse=True)
def _no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(registry, "periodic", {})


def client() -> forkq.Client:
    """One whose server does not answer: a refused push does not ask it."""
    return forkq.Client("redis://127.0.0.1:1/0")


def decorated(queue: str) -> None:
    forkq.job(queue=queue, name="A")(print_nothing)


def define_class(queue: str) -> None:
    class B(forkq.Job, name="B", queue=queue):
        def perform(self) -> None: ...


def print_nothing() -> None: ...


WRITERS: dict[str, Callable[[str], object]] = {
    "decorator": decorated,
    "class": define_class,
    "set": lambda queue: forkq.job(name="A")(print_nothing).set(queue=queue),
    "set of a key": lambda queue: forkq.job(name="A")(print_nothing).set({"queue": queue}),
    "retry queue": lambda queue: forkq.job(name="A")(print_nothing).set(retry_queue=queue),
    "push": lambda queue: client().push({**RAW, "queue": queue}),
    "bulk push": lambda queue: client().push_bulk({**RAW, "args": [[]], "queue": queue}),
    "periodic job": lambda queue: Entry.make(name="a", cron="@daily", job={**RAW, "queue": queue}),
    "every": lambda queue: forkq.every("@daily", queue=queue)(forkq.job(name="A")(print_nothing)),
    "move": checked_queue,
    "capsule": parse_queue,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_what_no_capsule_can_list_is_refused_wherever_forkq_writes_it(writer: str) -> None:
    write = WRITERS[writer]
    of_a_capsule = ("a,2", "tenant-*", "a?", "[ab]")  # a weight, patterns
    for queue in BAD:
        if writer == "capsule" and queue in of_a_capsule:
            continue
        with pytest.raises((InvalidJob, ConfigError)) as caught:
            write(queue)
        is_pattern = writer == "move" and queue in of_a_capsule[1:]
        assert ("name one queue" if is_pattern else QUEUE_NAME) in str(caught.value), queue


@pytest.mark.parametrize("writer", WRITERS)
def test_every_name_that_a_capsule_can_list_is_written(writer: str) -> None:
    for queue in GOOD:
        parse_queue(queue)
        try:
            WRITERS[writer](queue)
        except forkq.ServerUnavailable:
            assert "push" in writer


def test_the_error_names_the_job_the_option_and_what_to_write() -> None:
    with pytest.raises(InvalidJob) as caught:
        client().push({**RAW, "queue": "a b"})
    assert str(caught.value) == (
        "job 'A': `queue` is 'a b'; pass a name of letters, digits and _ . : -"
    )


def test_a_periodic_job_in_redis_may_name_any_queue() -> None:
    def written(queue: Any) -> bytes:
        job = {**RAW, "queue": queue}
        return msgspec.json.encode({"name": "a", "cron": "@daily", "job": job})

    assert Entry.decode(written("a b")).job["queue"] == "a b"
    for nothing in ("", 5, None):
        with pytest.raises(InvalidSchedule, match="`queue` is"):
            Entry.decode(written(nothing))
