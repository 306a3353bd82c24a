"""What a run of an iterable job counts of itself, while it runs and from run to run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

import forkq
from forkq import cursors, registry
from forkq.child.job_run import JobRun
from forkq.current_job import CurrentJob, enter_job, leave_job
from forkq.errors import InvalidJob
from forkq.features.iterable.parts import Iteration, read
from forkq.iteration import run_async_generator, run_generator
from forkq.wire.lease import Progress, UnitOfWork, seconds_left


class Store:
    """Keeps what a run saves, as Redis does."""

    def __init__(self, **fields: str) -> None:
        self.reply = {name.encode(): value.encode() for name, value in fields.items()}

    def load(self) -> Iteration:
        return read(self.reply)

    def save(self, reached: Iteration) -> bool:
        flat = [part if isinstance(part, bytes) else part.encode() for part in reached.fields()]
        self.reply.update(zip(flat[::2], flat[1::2], strict=True))
        return False


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})


@pytest.fixture
def running() -> Iterator[CurrentJob]:
    yield enter_job({"class": "X", "args": [], "jid": "j"}, JobRun(UnitOfWork(1, "q", 1, b"{}")))
    leave_job()


def perform(running: CurrentJob, job: forkq.IterableJob, store: Store) -> list[Progress]:
    """Performs the job until it fails at the item "stop". Returns what it told at each item."""
    told: list[Any] = []
    each = job.each_iteration

    def note(item: Any) -> None:
        told.append(running._run and running._run.unit.progress)
        if item == "stop":
            raise ZeroDivisionError
        each(item)

    running.cursors, job._running = store, running
    job.each_iteration = note
    with pytest.raises(ZeroDivisionError):
        job.perform()
    return told


def walk(pairs: Any) -> forkq.IterableJob:
    class Walk(forkq.IterableJob, name=f"Walk{len(registry._jobs)}"):
        def build_enumerator(self, cursor: Any = None) -> Any:
            return pairs(cursor)

        def each_iteration(self, item: Any) -> None: ...

    return Walk()


def test_a_list_counts_by_its_places_and_the_next_run_counts_on(running: CurrentJob) -> None:
    store, letters = Store(), ["a", "b", "stop", "c", "stop"]
    job = walk(lambda at: cursors.sequence(letters, at))
    told = perform(running, job, store)
    assert [(one.done, one.total, one.items) for one in told] == [(0, 5, 0), (1, 5, 1), (2, 5, 2)]
    saved = store.load()
    assert (saved.cursor, saved.items, saved.place) == (2, 2, (2, 5))
    letters[2] = "b2"
    told = perform(running, job, store)
    assert [(one.done, one.items) for one in told] == [(2, 2), (3, 3), (4, 4)]
    assert told[0].before == pytest.approx(saved.seconds, abs=1e-6)


def test_rows_count_by_their_number_and_batches_by_theirs(running: CurrentJob) -> None:
    rows = [("x", 70), ("y", 80), ("stop", 90)]
    told = perform(running, walk(lambda at: cursors.Pairs(rows, count=4)), Store())
    assert [(one.done, one.total) for one in told] == [(0, 4), (1, 4), (2, 4)]
    batched = cursors.batches(cursors.Pairs(rows, count=5), 2)
    assert (batched.total, batched.count) == (None, 3)


def test_what_the_job_reports_itself_stays(running: CurrentJob) -> None:
    class Reports(forkq.IterableJob, name="Reports"):
        def build_enumerator(self, cursor: Any = None) -> Any:
            return cursors.sequence(["a", "b", "stop"], cursor)

        def each_iteration(self, item: Any) -> None:
            forkq.current_job().progress(70, 100, "per cent")

    store = Store()
    told = perform(running, Reports(), store)
    known = [(one.done, one.total, one.note, one.items) for one in told]
    assert known == [(0, 3, "", 0), (70, 100, "per cent", 1), (70, 100, "per cent", 2)]
    assert store.load().place == (70, 100)


def test_a_generator_counts_its_steps(running: CurrentJob) -> None:
    def steps(cursor: int = 0) -> Iterator[int]:
        yield from range(cursor + 1, 4)
        raise ZeroDivisionError

    async def async_steps(cursor: int = 0) -> AsyncIterator[int]:
        for one in steps(cursor):
            yield one

    def run_async() -> None:
        asyncio.run(run_async_generator(running, async_steps))

    for run in (partial(run_generator, running, steps), run_async):
        running.cursors = store = Store(ex="1", c="1", rt="2.5", forkq="[1,1,1,null]")
        with pytest.raises(ZeroDivisionError):
            run()
        assert (store.load().items, store.load().place) == (3, (3, None))


@pytest.mark.parametrize(
    ("counted", "items", "place"),
    [
        ("[3,7,7.5,9]", 7, (7.5, 9)),
        ("[3,7,7,null]", 7, (7, None)),
        ("[2,7,7,9]", 7, None),  # Sidekiq had the third run, and counts nothing
        ("[3,7]", 7, None),
        ("[3]", 0, None),
        ('{"3":7}', 0, None),
        ("no JSON", 0, None),
        ('["3",[]]', 0, None),
    ],
)
def test_what_was_counted_is_read_or_counts_as_nothing(
    counted: str, items: int, place: object
) -> None:
    found = Store(ex="3", c="5", rt="1.5", forkq=counted).load()
    assert (found.runs, found.cursor, found.items, found.place) == (3, 5, items, place)


@pytest.mark.parametrize("odd", ["5", 2.5, -1, True, [].count])
def test_a_number_of_items_that_is_none_is_refused(odd: Any) -> None:
    with pytest.raises(InvalidJob, match=r"count=.*is no number of items"):
        cursors.Pairs([], count=odd)


def test_an_estimate_is_made_of_what_is_known() -> None:
    assert seconds_left(20, 100, 5) == pytest.approx(20)
    assert seconds_left(100, 100, 5) == 0
    unknown = [(0, 9, 5), (None, 9, 5), (5, None, 5), (5, 9, 0.5), (10, 9, 5)]
    assert [seconds_left(*one) for one in unknown] == [None] * 5


def test_the_progress_of_an_item_is_json(running: CurrentJob) -> None:
    [told, *_] = perform(running, walk(lambda at: cursors.sequence(["stop"], at)), Store())
    known = msgspec.json.decode(msgspec.json.encode(told), type=Progress)
    assert (known.done, known.total, known.items) == (0, 1, 0)
