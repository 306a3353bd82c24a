"""Spans of pushes and runs, as the SDK's own exporter gets them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from redis import Redis

import forkq
from forkq import middleware, registry, testing
from forkq.config.capsule import Kind
from forkq.contrib import flushing, otel, runs
from forkq.errors import IterationStopped
from tests.redis.in_process_child import InProcessChild
from tests.support.server import Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("clean_process")

RUBYS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Spans:
    """What the SDK exports."""

    def __init__(self) -> None:
        self.provider = TracerProvider()
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def all(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def named(self, operation: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name.startswith(f"{operation} ")]

    def one(self, operation: str) -> ReadableSpan:
        [found] = self.named(operation)
        return found

    def text(self) -> str:
        return "".join(span.to_json() for span in self.all())


@pytest.fixture
def spans() -> Iterator[Spans]:
    found = Spans()
    otel.instrument(tracer_provider=found.provider)
    yield found
    found.provider.shutdown()


@pytest.fixture
def jobs() -> Iterator[testing.RecordedJobs]:
    with testing.fake() as recorded:
        yield recorded


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    assert span.attributes is not None
    return span.attributes


def span_id(span: ReadableSpan) -> Any:
    assert span.context is not None
    return span.context.span_id


def header(span: ReadableSpan) -> str:
    """The beginning of ``traceparent``, without the flags."""
    assert span.context is not None
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-"


def perform(job: dict[str, Any], core: Any = lambda: None) -> None:
    """The server's middleware around ``core``."""
    middleware.server.run(job, core)


def ping() -> Any:
    @forkq.job(name="app.Ping", queue="mail")
    def job(number: int = 0) -> None:
        """Does nothing."""

    return job


def test_a_run_links_to_its_push(spans: Spans, jobs: testing.RecordedJobs) -> None:
    jid = ping().perform_async(1)
    [job] = jobs
    jobs.drain()
    push, run = spans.one("send"), spans.one("process")
    assert (push.name, push.kind) == ("send mail", SpanKind.PRODUCER)
    assert (run.name, run.kind) == ("process mail", SpanKind.CONSUMER)
    assert attributes(push) == {
        "messaging.system": "forkq",
        "messaging.operation.type": "send",
        "messaging.operation.name": "send",
        "messaging.destination.name": "mail",
        "messaging.forkq.job_class": "app.Ping",
        "messaging.message.id": jid,
    }
    assert attributes(run) == {
        **attributes(push),
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "forkq.job.attempt": 1,
        "forkq.job.outcome": "done",
    }
    assert json.loads(job.raw)["traceparent"].startswith(header(push))
    assert [link.context.span_id for link in run.links] == [span_id(push)]
    assert run.parent is None
    assert header(run)[:35] != header(push)[:35], "a trace of its own"
    assert {event.name for event in run.events} == {"created_at", "enqueued_at"}


def test_spans_of_awaited_pushes_end_with_them(spans: Spans, jobs: testing.RecordedJobs) -> None:
    """Each job carries the span of its own push, also where many are awaited at once, and a push
    that fails has a span that says so."""
    job = ping()

    async def main() -> None:
        await asyncio.gather(*(job.aperform_async(number) for number in range(20)))
        with testing.real(), pytest.raises(forkq.ServerUnavailable):
            await forkq.Client("redis://127.0.0.1:1/0").apush({"class": "app.Ping", "args": []})

    asyncio.run(main())
    *pushes, failed = spans.named("send")
    carried = {job.jid: json.loads(job.raw)["traceparent"][:53] for job in jobs}
    assert carried == {
        attributes(push)["messaging.message.id"]: header(push)[:53] for push in pushes
    }
    assert len(carried) == 20
    assert attributes(failed)["error.type"].endswith("ServerUnavailable")
    assert failed.parent is None


@pytest.mark.parametrize("style", ["child", "none"])
def test_other_propagations(jobs: testing.RecordedJobs, style: Any) -> None:
    spans = Spans()
    otel.instrument(tracer_provider=spans.provider, propagation=style, name_by="class")
    ping().perform_async()
    jobs.drain()
    push, run = spans.one("send"), spans.one("process")
    assert (push.name, run.name) == ("send app.Ping", "process app.Ping")
    assert not run.links
    assert (run.parent and run.parent.span_id) == (span_id(push) if style == "child" else None)
    spans.provider.shutdown()


def test_rubys_word_for_the_system(jobs: testing.RecordedJobs) -> None:
    spans = Spans()
    otel.instrument(tracer_provider=spans.provider, system="sidekiq")
    ping().perform_async()
    found = attributes(spans.one("send"))
    assert found["messaging.system"] == "sidekiq"
    assert found["messaging.sidekiq.job_class"] == "app.Ping"
    spans.provider.shutdown()


def test_a_wrong_option_is_one_clear_error() -> None:
    with pytest.raises(forkq.ForkqError, match="propagation is 'links'; use one of 'link', 'chi"):
        otel.instrument(propagation="links")  # type: ignore[arg-type]


def test_a_bulk_push_is_one_span(spans: Spans, jobs: testing.RecordedJobs) -> None:
    ping().perform_bulk([[number] for number in range(1500)])
    push = spans.one("send")
    assert attributes(push)["messaging.batch.message_count"] == 1500
    [carried] = {json.loads(job.raw)["traceparent"] for job in jobs}
    assert carried.startswith(header(push))


def test_each_attempt_is_a_span(spans: Spans, jobs: testing.RecordedJobs) -> None:
    @forkq.job(name="app.Fails", retry=1)
    def fails() -> None:
        raise ValueError("no such picture")

    fails.perform_async()
    jobs.drain(check=False)
    push, attempts = spans.one("send"), spans.named("process")
    assert [attributes(each)["forkq.job.attempt"] for each in attempts] == [1, 2]
    assert [attributes(each)["forkq.job.outcome"] for each in attempts] == ["retried", "dead"]
    for each in attempts:
        assert each.status.status_code is StatusCode.ERROR
        assert attributes(each)["error.type"] == "ValueError"
        [raised] = [event for event in each.events if event.name == "exception"]
        assert raised.attributes is not None
        assert raised.attributes["exception.message"] == "no such picture"
        assert [link.context.span_id for link in each.links] == [span_id(push)]


def test_a_time_limit_is_an_error(spans: Spans, jobs: testing.RecordedJobs) -> None:
    @forkq.job(name="app.Slow", retry=False)
    def slow() -> None:
        raise forkq.TimeLimit

    slow.perform_async()
    jobs.drain(check=False)
    found = attributes(spans.one("process"))
    assert found["error.type"] == "forkq.errors.TimeLimit"
    assert found["forkq.job.outcome"] == "dropped"


def test_a_discarded_job_is_no_error(spans: Spans, jobs: testing.RecordedJobs) -> None:
    @forkq.job(name="app.Gone", retry_in=lambda count, error, job: forkq.DISCARD)
    def gone() -> None:
        raise LookupError("the user is gone")

    gone.perform_async()
    jobs.drain(check=False)
    run = spans.one("process")
    assert attributes(run)["forkq.job.outcome"] == "discarded"
    assert run.status.status_code is StatusCode.UNSET
    assert "exception" in [event.name for event in run.events]


ENDS: dict[str, Any] = {
    "snoozed": lambda: forkq.Snooze(30),
    "discarded": lambda: forkq.Discard("no such user"),
    "cancelled": forkq.Cancelled,
    "interrupted": lambda: IterationStopped(7),
}


@pytest.mark.parametrize("outcome", ENDS)
def test_what_a_job_decides_is_no_error(spans: Spans, outcome: str) -> None:
    error: BaseException = ENDS[outcome]()

    def perform_job() -> None:
        raise error

    with pytest.raises(type(error)):
        perform({"class": "app.Ping", "jid": "a"}, perform_job)
    run = spans.one("process")
    assert attributes(run)["forkq.job.outcome"] == outcome
    assert run.status.status_code is StatusCode.UNSET
    assert ("exception" in [event.name for event in run.events]) == (outcome == "discarded")


def test_a_failure_whose_retry_would_be_too_late_is_an_error(
    spans: Spans, jobs: testing.RecordedJobs
) -> None:
    @forkq.job(name="app.Late", expires_in=10, retry_in=lambda count, error, job: 60)
    def late() -> None:
        raise LookupError("not there")

    late.perform_async()
    jobs.drain(check=False)
    run = spans.one("process")
    assert attributes(run)["forkq.job.outcome"] == "expired"
    assert run.status.status_code is StatusCode.ERROR


def test_an_interrupted_job_is_no_error(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise forkq.Shutdown

    monkeypatch.setattr(runs, "stopping", lambda: True)
    with pytest.raises(forkq.Shutdown):
        perform({"class": "app.Ping", "jid": "a"}, interrupted)
    run = spans.one("process")
    assert attributes(run)["forkq.job.outcome"] == "interrupted"
    assert run.status.status_code is StatusCode.UNSET


def test_what_a_job_and_its_hooks_push_belongs_to_its_run(
    spans: Spans, jobs: testing.RecordedJobs
) -> None:
    other = ping()

    @forkq.job(name="app.Parent", retry=False)
    def parent() -> None:
        other.perform_async(1)
        raise ValueError

    @forkq.on_death
    def died(job: forkq.Payload, error: BaseException) -> None:
        other.perform_async(2)

    parent.perform_async()
    jobs.drain(check=False)
    [run] = [span for span in spans.named("process") if span.name == "process default"]
    inner = [span for span in spans.named("send") if span.name == "send mail"]
    assert len(inner) == 2
    assert {each.parent and each.parent.span_id for each in inner} == {span_id(run)}


def test_rubys_context_is_read(spans: Spans) -> None:
    perform({"class": "app.Ping", "jid": "a", "queue": "mail", "traceparent": RUBYS})
    [link] = spans.one("process").links
    assert f"{link.context.span_id:016x}" == "b7ad6b7169203331"


@pytest.mark.parametrize("found", [7, ["x"], {"a": 1}, "", "00-zz-1", None])
def test_a_strange_context_harms_nothing(spans: Spans, found: Any) -> None:
    odd = {"jid": 7, "queue": ["q"], "created_at": "x", "enqueued_at": -1e300, "wrapped": {}}
    perform({"class": "app.Ping", "traceparent": found, "tracestate": found, **odd})
    run = spans.one("process")
    assert not run.links
    assert run.name == "process default"


def test_a_long_name_makes_no_large_span(spans: Spans) -> None:
    """A collector would refuse it, and the spans that it is sent together with."""
    long = "x" * 1_000_000
    perform({"class": long, "jid": long, "queue": long})
    assert 0 < len(spans.text()) < 10_000


def test_a_job_keeps_the_context_that_its_push_gave(
    spans: Spans, jobs: testing.RecordedJobs
) -> None:
    forkq.Client("redis://localhost:1").push(
        {"class": "app.Ping", "args": [], "traceparent": RUBYS, "queue": "mail"}
    )
    [job] = jobs
    assert json.loads(job.raw)["traceparent"] == RUBYS


def test_a_push_that_waits_has_a_span_and_a_context(
    spans: Spans, jobs: testing.RecordedJobs
) -> None:
    commits: list[Any] = []
    client = forkq.Client("redis://localhost:1")
    jid = client.push_later({"class": "app.Ping", "args": []}, commits.append)
    [commit] = commits
    commit()
    [job] = jobs
    assert attributes(spans.one("send"))["messaging.message.id"] == jid
    assert json.loads(job.raw)["traceparent"].startswith(header(spans.one("send")))


def test_a_push_that_a_middleware_refuses(spans: Spans, jobs: testing.RecordedJobs) -> None:
    middleware.client.append(lambda job, call: None)
    assert ping().perform_async() == ""
    assert "messaging.message.id" not in attributes(spans.one("send"))


def test_a_push_that_fails_is_an_error(spans: Spans) -> None:
    client = forkq.Client("redis://localhost:1", connect_timeout=1)
    with pytest.raises(forkq.ServerUnavailable):
        client.push({"class": "app.Ping", "args": []})
    with pytest.raises(forkq.InvalidJob):
        client.push(["no job"])  # type: ignore[arg-type]
    push = spans.one("send")
    assert push.status.status_code is StatusCode.ERROR
    assert attributes(push)["error.type"] == "forkq.errors.ServerUnavailable"


def test_no_argument_is_in_a_span(spans: Spans, jobs: testing.RecordedJobs) -> None:
    @forkq.job(name="app.Login", secret=True, retry=0)
    def login(user: dict[str, str], code: str) -> None:
        raise ValueError("wrong code")

    login.perform_async({"password": "hunter2"}, "sesame-open")
    jobs.drain(check=False)
    assert len(spans.all()) == 2
    assert "hunter2" not in spans.text()
    assert "sesame" not in spans.text()


def test_a_real_child_reports_each_job(
    spans: Spans, pushes_here: Redis, redis_server: Server
) -> None:
    """From Redis, also a job that is never performed, since the app does not have it: it has
    nothing of the job that has failed in the same thread before."""

    @forkq.job(name="app.Fails", queue="mail", retry=0)
    def fails() -> None:
        raise ValueError

    jids = [ping().perform_async(), fails.perform_async(), "unknown"]
    unknown = {"class": "app.None", "args": [], "retry": 0, "queue": "mail", "jid": "unknown"}
    pushes_here.lpush("queue:mail", json.dumps(unknown))
    carried: Any = pushes_here.lindex("queue:mail", -1)
    assert json.loads(carried)["traceparent"].startswith(header(spans.named("send")[0]))
    with InProcessChild(redis_server.url, queue="mail", concurrency=1):
        wait_until(lambda: len(spans.named("process")) == 3, what="the spans")
    runs = [attributes(each) for each in spans.named("process")]
    assert [run["messaging.message.id"] for run in runs] == jids
    assert [run["forkq.job.outcome"] for run in runs] == ["done", "dead", "dead"]
    errors = [None, "ValueError", "forkq.errors.UnknownJob"]
    assert [run.get("error.type") for run in runs] == errors


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_coroutines_that_run_at_once_have_a_span_each(
    spans: Spans, pushes_here: Redis, redis_server: Server, kind: Kind
) -> None:
    """What a job does is below its own span. That of a failed one ends when its fate is known."""
    gate, begun = threading.Event(), list[int]()
    tracer = spans.provider.get_tracer("app")

    @forkq.job(name="app.Load", queue="mail", retry=0)
    async def load(number: int) -> None:
        begun.append(number)
        while not gate.is_set():
            await asyncio.sleep(0.001)
        with tracer.start_as_current_span(f"inner {number}"):
            await asyncio.sleep(0)
        if number % 2:
            raise ValueError(number)

    jids = load.perform_bulk([[number] for number in range(4)])
    with InProcessChild(redis_server.url, queue="mail", concurrency=4, kind=kind):
        wait_until(lambda: len(begun) == 4, what="all four at once")
        gate.set()
        wait_until(lambda: len(spans.named("process")) == 4, what="the spans")
    runs = {attributes(each)["messaging.message.id"]: each for each in spans.named("process")}
    assert list(map(runs.__contains__, jids)) == [True] * 4
    found = [attributes(runs[jid])["forkq.job.outcome"] for jid in jids]
    assert found == ["done", "dead", "done", "dead"]
    inner = {each.name: each for each in spans.named("inner")}
    for number, jid in enumerate(jids):
        parent = inner[f"inner {number}"].parent
        assert parent is not None
        assert parent.span_id == span_id(runs[jid])


def test_an_observer_that_fails_costs_no_job(
    jobs: testing.RecordedJobs, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(runs.RunObserver):
        def began(self, run: runs.ObservedRun) -> None:
            raise RuntimeError("began")

        def inside(self, run: runs.ObservedRun) -> Any:
            raise RuntimeError("inside")

        def ended(self, run: runs.ObservedRun) -> None:
            raise RuntimeError("ended")

    runs.observe(Broken())
    ping().perform_bulk([[1], [2]])
    assert jobs.drain() == 2
    told = [record.exc_info[1].args[0] for record in caplog.records if record.exc_info]  # type: ignore[union-attr]
    assert told == ["began"], "the first, and once"


def test_a_second_call_replaces_the_first(spans: Spans, jobs: testing.RecordedJobs) -> None:
    otel.instrument(tracer_provider=spans.provider)
    ping().perform_async()
    jobs.drain()
    assert len(spans.all()) == 2
    assert len(registry.handlers("exit")) == 1


def test_the_last_spans_are_sent_within_the_bound(caplog: pytest.LogCaptureFixture) -> None:
    """Of a collector that never answers, a child that ends knows after that time."""
    answers = threading.Event()

    class Silent(TracerProvider):
        def force_flush(self, timeout_millis: int = 30000) -> bool:
            return answers.wait(60)

    provider = Silent(shutdown_on_exit=False)
    otel.instrument(tracer_provider=provider, flush_timeout=0.05)
    [flush] = registry.handlers("exit")
    flush()
    assert [record.getMessage() for record in caplog.records] == [
        "not all telemetry was sent within 0.05 s: is its collector away?"
    ]
    answers.set()


def test_a_flush_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise OSError("gone")

    assert flushing.flush_within(30, [fail])
    assert "telemetry was not sent" in caplog.text


def test_without_a_provider_nothing_is_written(jobs: testing.RecordedJobs) -> None:
    """The API alone: an app that has not configured OpenTelemetry."""
    otel.instrument(tracer_provider=trace.NoOpTracerProvider())
    ping().perform_async()
    [job] = jobs
    assert "traceparent" not in json.loads(job.raw)
    assert jobs.drain() == 1
