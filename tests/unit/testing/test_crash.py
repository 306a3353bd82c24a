"""Kills of a job at each point, and runs that are done twice, in tests without Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import forkq
from forkq import testing
from forkq.testing import RecordedJobs, crash_everywhere

POINTS = [
    "before step 'charge'",
    "in step 'charge', before it is remembered",
    "after step 'charge'",
    "before push of mail",
    "after push of mail",
    "before sleep 'cool'",
    "before its Asleep is noted",
    "before push of mail",
    "after push of mail",
    "before step 'ship'",
    "in step 'ship', before it is remembered",
    "after step 'ship'",
    "before it is acknowledged",
]


@pytest.fixture
def journal() -> list[str]:
    return []


def order(journal: list[str], kind: str) -> Any:
    """Charges, pushes a mail, sleeps, and ships; as a function, a class or a coroutine."""

    @forkq.job(name="mail")
    def mail() -> None:
        journal.append("mail")

    if kind == "coroutine":

        @forkq.job(name="order")
        async def by_loop(number: int) -> None:
            await forkq.astep("charge", journal.append, f"charge {number}")
            await mail.aperform_async()
            await forkq.asleep("cool", 3600)
            await forkq.astep("ship", journal.append, f"ship {number}")

        return by_loop

    def perform(number: int) -> None:
        forkq.step("charge", journal.append, f"charge {number}")
        mail.perform_async()
        forkq.sleep("cool", 3600)
        forkq.step("ship", journal.append, f"ship {number}")

    if kind == "function":
        return forkq.job(name="order")(perform)

    class ByClass(forkq.Job, name="order"):
        def perform(self, number: int) -> None:
            perform(number)

    return ByClass


@pytest.mark.parametrize("kind", ["function", "class", "coroutine"])
def test_each_point_is_killed_once_and_the_next_run_goes_on(journal: list[str], kind: str) -> None:
    """A step is done twice only if the kill came between its effect and its memory; what is
    outside of steps is done once more for a kill after it."""
    seen: list[tuple[int, int, int]] = []

    def check(jobs: RecordedJobs) -> None:
        assert [job.name for job in jobs.performed] == ["order"]
        charged, shipped = journal.count("charge 7"), journal.count("ship 7")
        seen.append((charged, len(jobs.enqueued("mail")), shipped))

    points = crash_everywhere(order(journal, kind).s(7), check=check, setup=journal.clear)
    assert points == POINTS
    mails = [2, 2, 2, 2, 2, 3, 3, 3, 2, 3, 3, 3, 3, 3]
    charges = [1, 1, 2, *[1] * 11]
    ships = [*[1] * 11, 2, 1, 1]
    assert seen == list(zip(charges, mails, ships, strict=True))


def test_a_failure_names_each_point(journal: list[str]) -> None:
    def check(jobs: RecordedJobs) -> None:
        assert journal.count("charge 7") == 1, f"charged {journal.count('charge 7')} times"

    job = order(journal, "function").s(7)
    with pytest.raises(AssertionError) as raised:
        crash_everywhere(job, check=check, setup=journal.clear)
    head, line = str(raised.value).split("\n", 1)
    assert head == "order does not bear 1 of 13 kills:"
    assert line.startswith(
        "  killed in step 'charge', before it is remembered, and run again: charged 2 times"
    )
    assert isinstance(raised.value.__cause__, AssertionError)


def test_a_job_that_fails_at_its_second_run_is_told(journal: list[str]) -> None:
    @forkq.job(name="insert", retry=1)
    def insert() -> None:
        if journal:
            raise ValueError("the row is there")
        journal.append("row")

    with pytest.raises(AssertionError, match=r"(?s)killed before it is ack.*the row is there"):
        crash_everywhere(insert.s(), check=lambda jobs: None, setup=journal.clear)


def test_what_is_wrong_without_a_kill_is_told_so(journal: list[str]) -> None:
    @forkq.job(name="broken", retry=0)
    def broken() -> None:
        raise ValueError("no such user")

    with pytest.raises(AssertionError, match=r"(?s)^without any kill: .*no such user"):
        crash_everywhere(broken.s(), check=lambda jobs: None)


def test_a_job_that_does_something_else_in_its_next_world_is_told(journal: list[str]) -> None:
    """The author has forgotten ``setup``."""

    @forkq.job(name="once")
    def once() -> None:
        if not journal:
            forkq.step("write", journal.append, "written")

    with pytest.raises(AssertionError, match=r"'write' came to before it is ack.*setup"):
        crash_everywhere(once.s(), check=lambda jobs: None)


@pytest.mark.parametrize("swallow", [Exception, BaseException])
def test_nothing_of_a_killed_run_is_written(
    journal: list[str], swallow: type[BaseException]
) -> None:
    """Though the job catches the kill, goes on, and ends well or fails; no handler hears of it."""
    heard: list[BaseException] = []

    @forkq.on_error
    def on_error(error: BaseException, context: object) -> None:
        heard.append(error)

    @forkq.job(name="mail")
    def mail(number: int) -> None: ...

    @forkq.job(name="greedy")
    def greedy() -> None:
        for number in range(2):
            try:
                mail.perform_async(number)
                forkq.step(f"note {number}", journal.append, f"note {number}")
            except swallow:
                journal.append("caught")
        if "caught" in journal:
            journal[:] = ["went on"]
            raise ValueError("of a dead process")

    seen: list[list[int]] = []

    def check(jobs: RecordedJobs) -> None:
        assert [job.name for job in jobs.performed] == ["greedy"]
        seen.append([job.args[0] for job in jobs.enqueued("mail")])

    points = crash_everywhere(greedy.s(), check=check, setup=journal.clear)
    assert len(points) == 11
    before_and_after = [[0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]]
    later = [[0, 0, 1], *[[0, 1, 0, 1]] * 5]
    assert seen == [[0, 1], *before_and_after, *later]
    assert heard == []


def test_a_signal_and_a_wait_are_points(journal: list[str]) -> None:
    """``setup`` may send signals, and pushes of its own are no points."""

    @forkq.job(name="waits")
    def waits() -> None:
        found = forkq.wait_for("go", timeout=60)
        journal.append(str(found and found.data))
        forkq.signal("gone")

    def setup() -> None:
        journal.clear()
        forkq.signal("go", data="ann")

    points = crash_everywhere(waits.s(), check=lambda jobs: None, setup=setup)
    assert points == [
        "before wait_for 'go'",
        "after wait_for 'go'",
        "before signal 'gone'",
        "after signal 'gone'",
        "before it is acknowledged",
    ]
    assert set(journal) == {"ann"}


def test_a_batch_and_a_cancel_are_points() -> None:
    """A batch whose pusher was killed in its block waits for ever: no callback of it runs."""
    called: list[int] = []

    @forkq.job(name="member", expires_in=60)
    def member() -> None: ...

    @forkq.job(name="callback")
    def callback() -> None:
        called.append(1)

    @forkq.job(name="opens")
    def opens() -> None:
        with forkq.Batch(on_success=callback.s()):
            member.perform_async()
        forkq.cancel("0123456789abcdef01234567")

    seen: list[int] = []

    def check(jobs: RecordedJobs) -> None:
        jobs.drain()
        seen.append(len(called))

    points = crash_everywhere(opens.s(), check=check, setup=called.clear)
    assert points == [
        *("before change of a batch", "after change of a batch"),
        *("before push of member", "after push of member"),
        *("before change of a batch", "after change of a batch"),
        "before cancel of a job",
        "after cancel of a job",
        "before it is acknowledged",
    ]
    assert seen == [1, *[1] * 5, *[2] * 4]


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_a_flow_is_pushed_between_two_points(journal: list[str], kind: str) -> None:
    """So a mark that is set before the flow is pushed is found out: the next run pushes none."""

    @forkq.job(name="step")
    def step() -> None:
        journal.append("step")

    def marked() -> bool:
        if "mark" in journal:
            return True
        journal.append("mark")
        return False

    @forkq.job(name="pushes")
    def pushes() -> None:
        if not marked():
            forkq.Flow("two", step.s() | step.s()).push()

    @forkq.job(name="pushes_by_loop")
    async def pushes_by_loop() -> None:
        if not marked():
            await forkq.Flow("two", step.s() | step.s()).apush()

    def check(jobs: RecordedJobs) -> None:
        jobs.drain()
        assert journal.count("step") == 2

    job = pushes.s() if kind == "function" else pushes_by_loop.s()
    with pytest.raises(AssertionError, match=r"does not bear 1 of 3 kills") as raised:
        crash_everywhere(job, check=check, setup=journal.clear)
    assert "killed before push of a flow, and run again" in str(raised.value)


def test_a_flow_that_is_pushed_again_is_another_one(journal: list[str]) -> None:
    """Its steps run once more. Its cancel is two changes, of its own and of what runs."""

    @forkq.job(name="step")
    def step() -> None:
        journal.append("step")

    @forkq.job(name="changes")
    def changes() -> None:
        forkq.Flow("stays", step.s()).push()
        flow = forkq.Flow("goes", step.s())
        flow.push()
        flow.cancel()

    seen: list[int] = []

    def check(jobs: RecordedJobs) -> None:
        jobs.drain()
        seen.append(journal.count("step"))

    points = crash_everywhere(changes.s(), check=check, setup=journal.clear)
    around = ("before push of a flow", "after push of a flow")
    of_flow = ("before cancel of a flow", "after cancel of a flow")
    of_batch = ("before cancel of a batch", "after cancel of a batch")
    assert points == [*around, *around, *of_flow, *of_batch, "before it is acknowledged"]
    assert seen == [1, 1, 2, 2, 3, 3, 3, 3, 2, 2]


def test_check_may_run_what_was_pushed(journal: list[str]) -> None:
    def check(jobs: RecordedJobs) -> None:
        jobs.drain()
        assert "mail" in journal

    crash_everywhere(order(journal, "function").s(7), check=check, setup=journal.clear)


def test_in_a_loop(journal: list[str]) -> None:
    """In an async test the jobs run in a thread of their own."""

    async def test() -> list[str]:
        job = order(journal, "coroutine").s(7)
        return crash_everywhere(job, check=lambda jobs: None, setup=journal.clear)

    assert asyncio.run(test()) == POINTS


def test_what_is_no_prepared_job_is_refused() -> None:
    with pytest.raises(TypeError, match=r"job\.s\(\.\.\.\)"):
        crash_everywhere(order([], "function"), check=lambda jobs: None)


def test_a_check_that_would_not_be_awaited_is_refused() -> None:
    async def check(jobs: RecordedJobs) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match="`check` of crash_everywhere is `async def`"):
        crash_everywhere(order([], "function").s(7), check=check)


# Each run twice


@pytest.mark.parametrize("kind", ["function", "class", "coroutine"])
@pytest.mark.parametrize("mode", [testing.fake, testing.inline])
def test_each_run_is_done_twice(journal: list[str], kind: str, mode: Callable[..., Any]) -> None:
    """Steps that are remembered are skipped, and the job is done once, as far as forkq is told."""
    with mode(twice=True) as jobs:
        order(journal, kind).perform_async(7)
        jobs.drain()
        assert journal.count("charge 7") == journal.count("ship 7") == 1
        assert journal.count("mail") == 8  # two runs before the sleep, two after, each mail twice
        names = [job.name for job in jobs.performed]
        assert (names.count("order"), names.count("mail")) == (1, 4)


def test_the_end_forgets_steps_that_the_last_run_has_skipped(journal: list[str]) -> None:
    @forkq.job(name="charges")
    def charges() -> None:
        forkq.step("charge", journal.append, "charge")

    with testing.fake(twice=True) as jobs:
        charges.perform_async()
        jobs.drain()
        assert (journal, jobs.remembered.steps) == (["charge"], {})


def test_a_run_that_fails_is_done_once(journal: list[str]) -> None:
    """Its retry is the second run."""

    @forkq.job(name="unreliable", retry=3)
    def unreliable() -> None:
        journal.append("run")
        if len(journal) < 3:
            raise ConnectionError("try again")

    with testing.fake(twice=True) as jobs:
        unreliable.perform_async()
        assert jobs.drain() == 3
    assert journal == ["run"] * 4


def test_a_job_that_does_not_bear_two_runs_fails(journal: list[str]) -> None:
    @forkq.job(name="insert", retry=0)
    def insert() -> None:
        if journal:
            raise ValueError("the row is there")
        journal.append("row")

    with testing.fake(twice=True) as jobs:
        insert.perform_async()
        with pytest.raises(AssertionError, match="the row is there"):
            jobs.drain()
    journal.clear()
    with testing.inline(twice=True), pytest.raises(ValueError, match="the row is there"):
        insert.perform_async()


def test_what_has_expired_is_not_run_at_all(journal: list[str]) -> None:
    @forkq.job(name="offer", expires_in=60)
    def offer() -> None:
        journal.append("run")
        raise forkq.Snooze(3600)

    with testing.fake(twice=True) as jobs:
        offer.perform_async()
        jobs.drain()
    assert journal == ["run", "run"]


def test_the_interrupt_of_the_author_ends_the_test(journal: list[str]) -> None:
    """Also while a kill unwinds the job."""

    @forkq.job(name="stopped")
    def stopped() -> None:
        try:
            forkq.step("write", journal.append, "written")
        finally:
            if not journal:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        crash_everywhere(stopped.s(), check=lambda jobs: None, setup=journal.clear)
    assert journal == []
