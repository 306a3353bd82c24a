"""The tasks of docs/api.md, in the order of the page: what each is called, which names of the API
it needs, and an example that has each of them. tests/process/test_api_examples.py runs them.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Task(NamedTuple):
    """A section of the page. ``names`` are dotted as an app writes them, or the plain names of
    types that are only returned. The first example is the module ``jobs`` that others import."""

    title: str
    names: tuple[str, ...]
    example: str


TASKS: Final = (
    Task(
        "Define a job",
        ("forkq.job", "forkq.Job", "forkq.DISCARD", "forkq.KILL"),
        """\
# jobs.py
import forkq


@forkq.job(queue="mail", timeout=30)
def welcome(user_id: int) -> None:
    print("welcome", user_id)


class Import(forkq.Job, queue="imports", retry=10):
    def perform(self, path: str) -> None:
        if path == "gone.csv":
            raise FileNotFoundError(path)
        print(self.jid, path)

    def retry_in(self, count: int, error: BaseException, job: forkq.Payload) -> object:
        if isinstance(error, FileNotFoundError):
            return forkq.DISCARD  # drop it
        return forkq.KILL if count > 5 else 60  # to the dead set at once; in a minute
""",
    ),
    Task(
        "Work item by item",
        (
            "forkq.IterableJob",
            *("forkq.cursors.sequence", "forkq.cursors.lines", "forkq.cursors.csv_rows"),
            *("forkq.cursors.django_rows", "forkq.cursors.sqlalchemy_rows"),
            *("forkq.cursors.batches", "forkq.cursors.nested", "forkq.cursors.Pairs"),
        ),
        """\
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forkq
from forkq import cursors


class Greet(forkq.IterableJob, max_runtime=600):
    def build_enumerator(self, names: list[str], cursor: int | None = None) -> cursors.Pairs[str]:
        return cursors.sequence(names, cursor)

    def each_iteration(self, name: str, names: list[str]) -> None:
        print("hello", name)


@forkq.job(iterable=True)
def count_up(last: int, cursor: int = 0) -> Iterator[int]:
    for number in range(cursor, last):
        print(number)
        yield number + 1  # where the next run goes on


Greet.perform_async(["ann", "bob"])
count_up.perform_async(3)


# What else a `build_enumerator` may return:
def users(queryset: Any, cursor: int | None) -> cursors.Pairs[Any]:
    return cursors.django_rows(queryset, cursor, page=500)


def orders(session: Any, statement: Any, key: Any, cursor: int | None) -> Any:
    return cursors.batches(cursors.sqlalchemy_rows(session, statement, key, cursor), 100)


def letters(path: Path, cursor: list[int] | None) -> Any:
    return cursors.nested(lambda at: cursors.lines(path, at), cursors.sequence, cursor=cursor)


Path("names.csv").write_text("name\\nann\\nbob\\n")
print([row["name"] for row, _ in cursors.csv_rows("names.csv")])
""",
    ),
    Task(
        "Do a step once",
        (
            *("forkq.step", "forkq.astep", "forkq.sleep", "forkq.asleep"),
            *("forkq.wait_for", "forkq.await_for", "forkq.signal", "forkq.Signal"),
        ),
        """\
import forkq


def charge(order: int, cents: int) -> str:
    print("charge", order, cents, "with the key", forkq.step.key)
    return f"receipt-{order}"


@forkq.job
def fulfil(order: int) -> None:
    receipt = forkq.step("charge", charge, order, 1999)
    approval = forkq.wait_for("approved", key=order, timeout=86_400)
    forkq.sleep("cool down", 3600)
    print(receipt, "approved by", approval.data if approval else "no one")


@forkq.job
async def fulfil_in_loop(order: int) -> None:
    await forkq.astep("charge", charge, order, 1999)
    signal: forkq.Signal | None = await forkq.await_for("approved", key=order, timeout=86_400)
    await forkq.asleep("cool down", 3600)
    print(signal)


fulfil.perform_async(7)
print(forkq.signal("approved", key=7, data="ann"))  # False: another one stands there
""",
    ),
    Task(
        "Push jobs",
        ("forkq.configure", "forkq.Client", "forkq.replicated"),
        """\
import forkq
from jobs import Import, welcome

client: forkq.Client = forkq.configure()  # or configure("redis://localhost:6379/0")
jid = welcome.perform_async(7)
welcome.perform_in(3600, 7)  # in an hour
welcome.perform_bulk([(1,), (2,), (3,)])  # in one round trip
Import.set(queue="low", retry=False).perform_async("a.csv")
print("on a replica:", forkq.replicated(jid))  # of a push with .set(wait=1); else None
client.push({"class": "HardJob", "args": [1], "queue": "ruby"})  # a job of another program
""",
    ),
    Task(
        "Inside a running job",
        (
            *("forkq.current_job", "forkq.lease_lost", "forkq.stopping", "forkq.is_leader"),
            *("forkq.idempotency_key", "CurrentJob", "Progress"),
        ),
        """\
import forkq


@forkq.job
def export(rows: int) -> None:
    job = forkq.current_job()  # a CurrentJob
    for row in range(rows):
        if forkq.stopping() or forkq.lease_lost():
            raise RuntimeError("again later")
        job.progress(row, rows, "writing")  # `forkq running` shows this Progress
    print(forkq.idempotency_key("upload"))  # the same in each run of this job


@forkq.job
def refresh_cache() -> None:
    if forkq.is_leader():
        print("only in one process of all hosts")
""",
    ),
    Task(
        "Run a job at certain times",
        ("forkq.every",),
        """\
import forkq


@forkq.every("0 3 * * *", tz="Europe/Berlin", overlap="skip", missed="once")
@forkq.job
def nightly() -> None: ...
""",
    ),
    Task(
        "Hear of events, failures and deaths",
        ("forkq.on", "forkq.on_death", "forkq.on_duplicate", "forkq.on_error"),
        """\
import forkq


@forkq.on("startup")  # in each child, before its first job
def connect() -> None: ...


@forkq.on_death
def page_somebody(job: forkq.Payload, error: BaseException) -> None:
    print("given up:", job["class"], error)


@forkq.on_duplicate  # of a job that has waited for a commit
def note(job: forkq.Payload, holder: str) -> None:
    print("not pushed:", job["jid"], "in favour of", holder)


@forkq.on_error
def count(error: BaseException, context: forkq.ErrorContext) -> None:
    print(context.get("outcome"))
""",
    ),
    Task(
        "Wrap pushes and runs",
        (
            *("forkq.middleware.AroundMiddleware", "forkq.middleware.Middleware"),
            "forkq.middleware.Chain",
        ),
        """\
from collections.abc import Iterator
from typing import Any

import forkq
from forkq.middleware import AroundMiddleware, Chain, Middleware


def with_tenant(job: forkq.Payload) -> Iterator[None]:
    job["tenant"] = "blue"
    yield  # the push, or the run


def only_by_day(job: forkq.Payload, call: forkq.NextCall) -> Any:
    return call()  # None instead would veto the push


pushes: Chain = forkq.middleware.client
innermost: AroundMiddleware = pushes.append(with_tenant)
outermost: Middleware = pushes.prepend(only_by_day)
pushes.remove(outermost)
pushes.remove(innermost)
""",
    ),
    Task(
        "Choose the Redis that is asked",
        (
            *("forkq.api.server", "forkq.api.servers", "forkq.api.shards", "forkq.api.shards_of"),
            *("forkq.api.Server", "forkq.api.Servers"),
        ),
        """\
from forkq import api

one: api.Server = api.server()  # the only one, or the default shard
every: api.Servers = api.servers()
print(api.shards(), api.shards_of("mail"))  # [] and [] without [[redis.shards]]
for server in every:
    print(api.stats(server).enqueued)
print(one.now())
""",
    ),
    Task(
        "Count jobs",
        (
            *("forkq.api.stats", "forkq.api.history", "forkq.api.Stats", "forkq.api.QueueFigures"),
            *("forkq.api.Day", "forkq.api.damaged_keys"),
        ),
        """\
from forkq import api

stats: api.Stats = api.stats()
print(stats.enqueued, stats.retry, stats.dead, stats.busy)
for queue in stats.queues:  # each a QueueFigures
    print(queue.name, queue.size, queue.latency)
for day in api.history(days=7):  # each a Day
    print(day.date, day.processed, day.failed)
assert api.damaged_keys() == []
""",
    ),
    Task(
        "Look at queues, and control them",
        (
            *("forkq.api.Queue", "forkq.api.queue_names", "forkq.api.queues", "forkq.api.Limits"),
            *("forkq.api.queue_reports", "forkq.api.QueueReport", "forkq.api.QueueState"),
            "forkq.api.Hold",
        ),
        """\
from forkq import api
from jobs import welcome

welcome.perform_async(7)
mail = api.Queue("mail")
mail.limit = 5  # at once, on all hosts
mail.rate = "100/minute"
mail.pause(by="anna")
report: api.QueueReport = mail.report()
state: api.QueueState = report.state
hold: api.Hold = report.holds[0]
print(state.size, state.paused_by, hold.text)
mail.resume()
mail.reset()
print(api.queue_names(), len(api.queues()), len(api.queue_reports("m*")))
print([state.name for state in api.Limits()])
""",
    ),
    Task(
        "Find a job",
        (
            *("forkq.api.find", "Found", "forkq.api.entry", "forkq.api.is_alive"),
            *("forkq.api.JobEntry", "forkq.api.JobEvent", "forkq.api.Crash"),
        ),
        """\
from forkq import api
from jobs import welcome

jid = welcome.perform_async(7)
found = api.find(jid)  # a Found, or None
assert found is not None and found.location == "queued"
assert api.is_alive(jid)  # it runs or will run
entry: api.JobEntry | None = api.entry(jid)  # to read it, and to act on it
assert entry is not None
print(entry.name, entry.args, entry.queue)
for event in entry.events:  # each a JobEvent
    print(event.at, event.what, event.detail)
for crash in entry.crashes:  # each a Crash
    print(crash.why, crash.rss)
entry.delete()
""",
    ),
    Task(
        "Wait for results",
        (
            *("forkq.result", "forkq.aresult", "forkq.ResultUnknown", "forkq.ResultNotKept"),
            *("forkq.ResultTooLarge", "forkq.JobFailed", "forkq.JobCancelled", "forkq.JobExpired"),
        ),
        """\
import asyncio

import forkq


@forkq.job(result_ttl=60)
def total(prices: list[int]) -> int:
    return sum(prices)


def look(jid: str) -> object:
    try:
        return total.result(jid, timeout=0)  # forkq.result knows jobs of any class
    except TimeoutError:
        return "it waits or runs"
    except (forkq.JobCancelled, forkq.JobExpired) as error:
        return f"it was not run: {error}"
    except forkq.JobFailed as error:
        return f"{error.outcome}: {error.error_class} {error.error_message}"
    except forkq.ResultTooLarge:
        return "it is done, and has returned too much"
    except forkq.ResultNotKept as error:
        return f"it is done, and has returned what JSON does not have: {error}"


assert look(total.perform_async([1, 2])) == "it waits or runs"
for call in (forkq.result, lambda jid: asyncio.run(forkq.aresult(jid))):
    try:
        call("no such job")
    except forkq.ResultUnknown:
        print("unknown, or its result has expired")
""",
    ),
    Task(
        "Cancel jobs",
        (
            *("forkq.cancel", "forkq.Cancelled", "forkq.api.cancel", "forkq.api.cancel_class"),
            "forkq.api.cancel_jobs",
            *("forkq.api.is_being_cancelled", "forkq.api.cancelled_at"),
        ),
        """\
import forkq
from forkq import api
from jobs import welcome

jid = welcome.perform_async(7)
outcome = forkq.cancel(jid)  # with wait=10 it waits for what becomes of it
assert outcome == "pending"
print(api.is_being_cancelled(jid), api.cancelled_at(jid))
api.cancel_class("welcome")  # all that were made before now
print(api.cancel_jobs([jid], wait=0.1))  # what has become of each
print(api.ScheduledSet().cancel_all(api.Filter(job="welcome")).done)


@forkq.job
def export(rows: int) -> None:
    try:
        print(rows)
    except forkq.Cancelled:  # only to clean up: raise it again
        print("removing the half of a file")
        raise
""",
    ),
    Task(
        "Look at dead, failed and scheduled jobs",
        (
            *("forkq.api.DeadSet", "forkq.api.RetrySet", "forkq.api.ScheduledSet"),
            *("forkq.api.JobSet", "forkq.api.job_set", "forkq.api.Filter"),
        ),
        """\
from forkq import api
from jobs import Import, welcome

welcome.perform_in(3600, 7)
later: api.JobSet = api.ScheduledSet()
print(later.size, [entry.args for entry in later.page(0, 25)])
reports = api.Filter(job="jobs.Import", older_than=3600)
for entry in api.DeadSet().scan(reports):
    print(entry.jid, entry.error_class)
print(api.RetrySet().count(reports), api.job_set("dead").size)
""",
    ),
    Task(
        "Act on many jobs",
        ("forkq.api.Outcome", "forkq.api.undo"),
        """\
from forkq import api
from jobs import Import

Import.perform_bulk([("a.csv",), ("b.csv",)])
imports = api.Queue("imports")
outcome: api.Outcome = imports.delete_all(api.Filter(match="a.csv"), undo=True)
assert outcome.done == 1
api.undo(outcome.undo)  # within ten minutes
api.DeadSet().retry_all(api.Filter(error="TimeoutError"), fresh=True)
api.RetrySet().kill_all(api.Filter(job="jobs.Import"), dry_run=True)
""",
    ),
    Task(
        "See what fails",
        ("forkq.api.failures", "forkq.api.FailureGroups", "forkq.api.FailureGroup"),
        """\
from forkq import api

found: api.FailureGroups = api.failures()
for group in found:  # each a FailureGroup, the largest first
    print(group.job, group.error, group.count, group.message)
    api.DeadSet().retry_all(group.where)
""",
    ),
    Task(
        "See what runs",
        (
            *("forkq.api.running", "forkq.api.RunningJob", "forkq.api.WorkSet", "forkq.api.stuck"),
            *("forkq.api.progress", "forkq.api.iteration", "forkq.api.JobIteration"),
            *("forkq.api.ran_twice", "forkq.api.RanTwice"),
        ),
        """\
from forkq import api

for job in api.running():  # each a RunningJob, the longest first
    print(job.job, job.elapsed, job.progress, job.seconds_left)
for job in api.stuck(minutes=30):  # no progress for so long
    api.WorkSet().dump_stack(job.jid)
walk: api.JobIteration | None = api.iteration("b4a577edbccf1d805744efa9")
if walk is not None:  # the job is iterable, and has a cursor
    print(walk.cursor, walk.items, walk.runs, walk.seconds_left)
again: api.RanTwice | None = api.ran_twice("b4a577edbccf1d805744efa9")
if again is not None:
    print(again.identity, again.at)
""",
    ),
    Task(
        "See who runs it, and order about",
        ("forkq.api.processes", "forkq.api.Process", "forkq.api.ProcessSet", "forkq.api.Tree"),
        """\
from forkq import api

for process in api.processes():  # each a Process
    print(process.identity, process.busy, process.rss)
    if process.tag == "old":
        api.ProcessSet().quiet(process.identity)
for tree in api.ProcessSet().trees():  # each a Tree
    print(tree.hostname, tree.busy, tree.concurrency)
""",
    ),
    Task(
        "Release a class that killed processes",
        ("forkq.api.held_classes", "forkq.api.release_class", "forkq.api.HeldClass"),
        """\
from forkq import api

for held in api.held_classes():  # each a HeldClass
    print(held.name, held.deaths, held.waiting)
    api.release_class(held.name)  # its fault is mended
""",
    ),
    Task(
        "Run a job when others have ended",
        ("forkq.Batch", "forkq.BatchFinished", "forkq.PreparedJob"),
        """\
import forkq


@forkq.job
def report(month: str) -> None: ...


@forkq.job
def load(row: int) -> None: ...


prepared: forkq.PreparedJob = report.s("april")  # not pushed yet
try:
    with forkq.Batch("import", on_success=prepared) as batch:
        load.perform_async(1)
        batch.perform_bulk(load, ([row] for row in range(2, 1000)))
    print(batch.bid)
except forkq.BatchFinished:
    print("a person has cancelled it")
""",
    ),
    Task(
        "Run jobs one after the other",
        ("forkq.Flow", "forkq.BEFORE", "forkq.chain", "forkq.group"),
        """\
import forkq


@forkq.job
def download(url: str) -> str:
    return url


@forkq.job
def resize(page: str, width: int) -> int:
    return width


@forkq.job
def report(widths: list[int]) -> None: ...


flow = forkq.Flow("report")
flow.add("page", download.s("https://example.com/"))
flow.add("small", resize.s(flow.result("page"), 200), after=["page"], on_failure="cancel")
flow.push()

sizes = forkq.group(resize.s("page", 200), resize.s("page", 900))
short = forkq.Flow("short", sizes | report.s(forkq.BEFORE))
same = forkq.Flow("same", forkq.chain(sizes, report.s(forkq.BEFORE)))
""",
    ),
    Task(
        "See a batch, and end or retry it",
        ("forkq.api.Batch", "forkq.api.BatchReport", "forkq.api.batches"),
        """\
from forkq import api

report: api.BatchReport
for report in api.batches():
    print(report.bid, report.state, report.waiting, report.dead)
    if report.may_be_abandoned:
        api.Batch(report.bid).seal()
    if report.dead:
        api.Batch(report.bid).retry_dead()
""",
    ),
    Task(
        "See a flow and its steps, and retry or cancel it",
        ("forkq.api.Flow", "forkq.api.FlowReport", "forkq.api.StepReport", "forkq.api.flows"),
        """\
from forkq import api

report: api.FlowReport
for report in api.flows():
    flow = api.Flow(report.bid)
    step: api.StepReport
    for step in flow.steps():
        print(step.name, step.state, step.waits_for)
    if report.dead:
        flow.retry_dead()
""",
    ),
    Task(
        "See and free the locks of unique jobs",
        (
            *("forkq.api.unique_locks", "forkq.api.LockFilter", "forkq.api.UniqueLock"),
            *("forkq.api.lock_of", "forkq.api.free_lock"),
        ),
        """\
from forkq import api

lock: api.UniqueLock | None
for lock in api.unique_locks(api.LockFilter(job="Import", older_than=3600)):
    print(lock.digest, lock.jid, lock.since, lock.until, lock.is_doubted)
    lock.free()  # its job stays where it is
for entry in api.Queue("default"):
    lock = api.lock_of(entry)  # None: the job is not unique
    if lock is not None:
        api.free_lock(lock.digest)
""",
    ),
    Task(
        "Read run times and rates",
        (
            *("forkq.api.Metrics", "forkq.api.MetricsReport", "forkq.api.ClassMetrics"),
            *("forkq.api.Point", "forkq.api.Histogram", "forkq.api.Deploy"),
        ),
        """\
from forkq import api

hour: api.MetricsReport = api.Metrics().over(minutes=60)
for one in hour.classes:  # each a ClassMetrics, with a Point for each minute
    print(one.job, one.processed, one.failed, one.average, len(one.points))
times: api.Histogram = api.Metrics().histogram("jobs.welcome")
print(times.count, times.percentiles())
for deploy in api.Metrics().deploys():  # each a Deploy
    print(deploy.at, deploy.label)
""",
    ),
    Task(
        "Change periodic jobs at run time",
        (
            *("forkq.api.cron.add", "forkq.api.cron.list", "forkq.api.cron.get"),
            *("forkq.api.cron.pause", "forkq.api.cron.resume", "forkq.api.cron.run"),
            *("forkq.api.cron.history", "forkq.api.cron.remove", "forkq.api.cron.has_leader"),
            *("forkq.api.cron.Periodic", "forkq.api.cron.Run", "Entry", "Schedule"),
        ),
        """\
from forkq.api import cron

report: cron.Periodic = cron.add("report", "0 7 * * mon", "shop.Report", args=[7])
print(report.entry.schedule.expression, report.ticks(3))  # an Entry, its Schedule
cron.pause("report")
cron.resume("report")
jid = cron.run("report")  # now, by hand
for run in cron.history("report"):  # each a Run
    print(run.event, run.at)
assert cron.get("report").name in [one.name for one in cron.list()]
print(cron.has_leader())
cron.remove("report")
""",
    ),
    Task(
        "Await a push",
        ("forkq.push_outcome", "forkq.PushOutcome"),
        """\
import asyncio

import forkq
from jobs import Import, welcome


async def main() -> None:
    client = forkq.configure()
    jid = await welcome.aperform_async(7)
    await welcome.aperform_in(3600, 7)
    await Import.set(queue="low").aperform_bulk([("a.csv",), ("b.csv",)])
    await client.apush({"class": "HardJob", "args": [1], "queue": "ruby"})
    try:
        await asyncio.wait_for(welcome.aperform_async(8), 5)
    except asyncio.TimeoutError as error:
        outcome = forkq.push_outcome(error)  # a PushOutcome: which jids are in Redis, or may be
        print(jid, outcome)
    await client.aclose()


asyncio.run(main())
""",
    ),
    Task(
        "Ask from asyncio",
        ("forkq.api.aio.run", "forkq.api.aio.pages", "forkq.api.aio.close"),
        """\
import asyncio

from forkq import api
from forkq.api import aio


async def main() -> None:
    stats = await aio.run(api.stats)
    print(stats.enqueued)
    async for entries in aio.pages(api.DeadSet().scan()):
        print(len(entries))
    await aio.close()


asyncio.run(main())
""",
    ),
    Task(
        "Test code that pushes",
        (
            *("forkq.testing.fake", "forkq.testing.inline", "forkq.testing.real"),
            *("forkq.testing.refused", "forkq.testing.recorded", "forkq.testing.drain"),
            *("forkq.testing.adrain", "forkq.testing.enqueued", "forkq.testing.not_enqueued"),
            *("forkq.testing.RecordedJobs", "forkq.testing.RecordedJob"),
            *("forkq.testing.JobsMixin", "forkq.testing.PushRefused", "forkq.testing.ForkqServer"),
            *("forkq.testing.crash_everywhere", "forkq.testing.freeze_time"),
            "forkq.testing.FrozenTime",
        ),
        """\
from unittest import TestCase

from forkq import testing
from jobs import Import, welcome

with testing.fake() as jobs:  # a RecordedJobs
    welcome.perform_async(7)
    assert testing.recorded() is jobs
    [job] = testing.enqueued(welcome, args=[7])  # a RecordedJob
    assert job.queue == "mail"
    testing.not_enqueued(Import)
    assert testing.drain() == 1  # runs it


async def test_in_a_loop() -> None:
    with testing.fake():
        welcome.perform_async(11)
        await testing.adrain()


with testing.inline():
    welcome.perform_async(8)  # runs at once

with testing.fake() as jobs, testing.freeze_time() as time:  # a FrozenTime
    welcome.perform_in(3600, 10)
    assert jobs.drain() == 0
    time.move(3600)
    assert jobs.drain() == 1

with testing.fake(twice=True):
    welcome.perform_async(8)
    testing.drain()  # runs it twice

points = testing.crash_everywhere(welcome.s(7), check=lambda jobs: None)
print(points)  # where it was killed, and run again

with testing.refused():
    try:
        welcome.perform_async(9)
    except testing.PushRefused as error:
        print(error)

with testing.real():  # against a server; pytest's fixture forkq_server is a ForkqServer
    welcome.perform_async(10)


class MailTest(testing.JobsMixin, TestCase):
    def test_a_mail_is_sent(self) -> None:
        welcome.perform_async(7)
        testing.enqueued(welcome)
""",
    ),
)
