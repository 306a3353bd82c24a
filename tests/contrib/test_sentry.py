"""What the real client of Sentry sends, taken by a transport of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sentry_sdk
from redis import Redis
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

import forkq
from forkq import default_client, middleware, testing
from forkq.config.capsule import Kind
from forkq.contrib import runs, sentry
from forkq.contrib.sentry.monitors import slug_of
from forkq.cron.entry import Entry
from tests.redis.in_process_child import InProcessChild
from tests.support.server import Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("clean_process")


class Sent(Transport):
    """Keeps what the client sends."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[tuple[str, dict[str, Any]]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            self.items.append((item.type or "", json.loads(item.get_bytes())))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [payload for found, payload in self.items if found == kind]

    def one(self, kind: str) -> dict[str, Any]:
        [found] = self.of(kind)
        return found

    @property
    def errors(self) -> list[str]:
        """The texts of the errors, in order."""
        return [each["exception"]["values"][-1]["value"] for each in self.of("event")]


def start() -> Sent:
    sent = Sent()
    sentry_sdk.init(
        dsn="http://key@127.0.0.1:1/1",
        transport=sent,
        default_integrations=False,
        auto_enabling_integrations=False,
        auto_session_tracking=False,
        enable_backpressure_handling=False,  # a thread
        traces_sample_rate=1.0,
    )
    return sent


@pytest.fixture
def sent() -> Iterator[Sent]:
    sent = start()
    sentry.instrument()
    yield sent
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


@pytest.fixture
def jobs() -> Iterator[testing.RecordedJobs]:
    with testing.fake() as recorded:
        yield recorded


def fails(**options: Any) -> Any:
    @forkq.job(name="app.Fails", queue="mail", **options)
    def job(settings: object = None) -> None:
        sentry_sdk.add_breadcrumb(message="about to fail")
        raise ValueError("no such picture")

    return job


def test_each_failed_attempt_is_reported_with_its_job(
    sent: Sent, jobs: testing.RecordedJobs
) -> None:
    jid = fails(retry=1).perform_async()
    sentry_sdk.add_breadcrumb(message="before the job")
    jobs.drain(check=False)
    first, last = sent.of("event")
    assert first["tags"] == {
        "class": "app.Fails",
        "queue": "mail",
        "jid": jid,
        "outcome": "retried",
    }
    assert last["tags"]["outcome"] == "dead"
    assert first["transaction"] == "app.Fails"
    described = {key: first["contexts"]["forkq"][key] for key in ("class", "jid", "attempt")}
    assert described == {"class": "app.Fails", "jid": jid, "attempt": 1}
    assert last["contexts"]["forkq"]["attempt"] == 2
    assert [crumb["message"] for crumb in first["breadcrumbs"]["values"]] == ["about to fail"]
    assert len(last["breadcrumbs"]["values"]) == 1, "each run has a scope of its own"
    mechanisms = [each["exception"]["values"][0]["mechanism"]["handled"] for each in (first, last)]
    assert mechanisms == [True, False]
    assert sentry_sdk.get_isolation_scope()._tags == {}


def test_only_final_failures(sent: Sent, jobs: testing.RecordedJobs) -> None:
    sentry.instrument(report="final")
    fails(retry=2).perform_async()
    jobs.drain(check=False)
    assert sent.one("event")["tags"]["outcome"] == "dead"
    with pytest.raises(forkq.ForkqError, match="report is 'never'; use 'always' or 'final'"):
        sentry.instrument(report="never")  # type: ignore[arg-type]


def test_what_a_rule_of_the_app_ends_is_no_error(
    sent: Sent, jobs: testing.RecordedJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        raise forkq.Shutdown

    fails(retry_in=lambda count, error, job: forkq.DISCARD).perform_async()
    jobs.drain(check=False)
    monkeypatch.setattr(runs, "stopping", lambda: True)
    with pytest.raises(forkq.Shutdown):
        middleware.server.run({"class": "app.Fails", "jid": "a"}, interrupted)
    assert sent.of("event") == []
    traces = [each["contexts"]["trace"]["status"] for each in sent.of("transaction")]
    assert traces == ["ok", "aborted"]


def test_a_run_continues_the_trace_of_its_push(sent: Sent, jobs: testing.RecordedJobs) -> None:
    with sentry_sdk.start_transaction(name="a request"):
        jid = fails(retry=False).perform_async()
    [job] = jobs
    headers = json.loads(job.raw)["trace_propagation_headers"]
    assert set(headers) == {"sentry-trace", "baggage"}
    jobs.drain(check=False)
    request, run = sent.of("transaction")
    [push] = request["spans"]
    assert (push["op"], push["description"]) == ("queue.publish", "app.Fails")
    assert push["data"]["messaging.message.id"] == jid
    assert push["data"]["messaging.destination.name"] == "mail"
    trace = run["contexts"]["trace"]
    assert (trace["op"], trace["status"]) == ("queue.process", "internal_error")
    assert trace["trace_id"] == request["contexts"]["trace"]["trace_id"]
    assert trace["parent_span_id"] == push["span_id"]
    assert trace["data"]["messaging.message.retry.count"] == 0
    assert trace["data"]["messaging.message.receive.latency"] >= 0
    assert sent.one("event")["contexts"]["trace"]["trace_id"] == trace["trace_id"]
    assert run["transaction"] == "app.Fails"


def test_a_bulk_push_is_one_span(sent: Sent, jobs: testing.RecordedJobs) -> None:
    with sentry_sdk.start_transaction(name="a request"):
        fails().perform_bulk([[None]] * 1200)
    [push] = sent.one("transaction")["spans"]
    assert push["data"]["messaging.batch.message_count"] == 1200
    assert len({json.dumps(json.loads(job.raw)["trace_propagation_headers"]) for job in jobs}) == 1


@pytest.mark.parametrize("found", [7, ["x"], {"sentry-trace": 7, "baggage": {}}, "", None])
def test_a_strange_trace_harms_nothing(sent: Sent, found: Any) -> None:
    middleware.server.run({"class": "app.Odd", "trace_propagation_headers": found}, lambda: None)
    assert sent.one("transaction")["transaction"] == "app.Odd"


def test_a_secret_job_sends_no_value(sent: Sent, jobs: testing.RecordedJobs) -> None:
    sentry.instrument(arguments=True)
    fails(retry=0, secret=True).perform_async({"user": "sesame-open"})
    jobs.drain(check=False)
    assert "sesame" not in json.dumps(sent.items)
    assert sent.one("event")["contexts"]["forkq"]["args"] == ["***"]
    frames = sent.one("event")["exception"]["values"][0]["stacktrace"]["frames"]
    assert not [frame for frame in frames if "vars" in frame]


@pytest.mark.parametrize("arguments", [True, False])
def test_secret_keys_are_masked(sent: Sent, jobs: testing.RecordedJobs, arguments: bool) -> None:
    sentry.instrument(arguments=arguments)
    fails(retry=0).perform_async({"password": "hunter2", "size": "plain-value"})
    jobs.drain(check=False)
    event = sent.one("event")
    assert "hunter2" not in json.dumps(sent.items)
    args = [{"password": "***", "size": "plain-value"}] if arguments else None
    assert event["contexts"]["forkq"].get("args") == args
    frames = event["exception"]["values"][0]["stacktrace"]["frames"]
    [mine] = [frame["vars"] for frame in frames if "vars" in frame]
    assert "plain-value" in json.dumps(mine["settings"]), "other values stay"
    assert not any(frame["in_app"] for frame in frames if "/forkq/child/" in frame["abs_path"])
    assert len(event["exception"]["values"]) == 1, "nothing of forkq led to it"


def test_errors_of_hooks_are_reported(sent: Sent, jobs: testing.RecordedJobs) -> None:
    def broken(count: int, error: BaseException, job: forkq.Payload) -> None:
        raise KeyError("in the hook")

    @forkq.on_death
    def died(job: forkq.Payload, error: BaseException) -> None:
        raise LookupError("in the handler")

    jid = fails(retry=1, retry_in=broken).perform_async()
    jobs.drain(check=False)
    assert sent.errors == [
        *("'in the hook'", "no such picture"),
        *("no such picture", "in the handler"),
    ]
    assert {each["tags"]["jid"] for each in sent.of("event")} == {jid}
    hook = sent.of("event")[0]
    assert hook["contexts"]["forkq"]["what"] == "retry_in failed; the default delay is used"


def test_periodic_jobs_check_in(sent: Sent, jobs: testing.RecordedJobs) -> None:
    @forkq.every("*/5 * * * *", tz="Europe/Berlin", name="Nightly Clean-Up", jitter=90)
    @forkq.job(name="app.Clean", timeout=100)
    def clean() -> None:
        raise ValueError

    marks = {"cron": "Nightly Clean-Up", "tick": 1}
    clean.perform_async()  # by a person
    push = forkq.Client("redis://localhost:1").push
    push({"class": "app.Clean", "args": [], "forkq": marks, "retry": 1})
    jobs.drain(check=False)
    checks = sent.of("check_in")
    assert [each["status"] for each in checks] == ["in_progress", "error"] * 2
    ids = [each["check_in_id"] for each in checks]
    assert ids[0] == ids[1] != ids[2] == ids[3], "each attempt has its own"
    assert checks[0]["monitor_slug"] == "nightly-clean-up"
    assert checks[0]["monitor_config"] == {
        "schedule": {"type": "crontab", "value": "*/5 * * * *"},
        "timezone": "Europe/Berlin",
        "checkin_margin": 3,
        "max_runtime": 2,
    }
    assert checks[1]["duration"] >= 0


def test_schedules_that_sentry_does_not_know_and_monitors_that_are_off(
    sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    @forkq.every("@hourly", name="hourly")
    @forkq.every("*/10 * * * * *", name="seconds")
    @forkq.job(name="app.Often")
    def often() -> None:
        """Does nothing."""

    def run(name: object) -> list[dict[str, Any]]:
        job = {"class": "app.Often", "jid": "a", "forkq": {"cron": name}}
        middleware.server.run(job, lambda: None)
        return sent.of("check_in")

    assert run("seconds") == run("not mine") == run(["odd"]) == []
    assert [each["status"] for each in run("hourly")] == ["in_progress", "ok"]
    assert sent.of("check_in")[0]["monitor_config"]["schedule"]["value"] == "0 * * * *"
    sentry.instrument(monitors=False)
    assert len(run("hourly")) == 2


def test_an_interrupted_run_is_the_same_check_in_when_it_goes_on(
    sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    @forkq.every("0 3 * * *", name="nightly")
    @forkq.job(name="app.Night")
    def night() -> None:
        """Never run here."""

    def interrupted() -> None:
        raise forkq.Shutdown

    job = {"class": "app.Night", "jid": "a", "forkq": {"cron": "nightly"}}
    with monkeypatch.context() as patched:
        patched.setattr(runs, "stopping", lambda: True)
        with pytest.raises(forkq.Shutdown):
            middleware.server.run(job, interrupted)
    middleware.server.run(job, lambda: None)
    checks = sent.of("check_in")
    assert [each["status"] for each in checks] == ["in_progress", "in_progress", "ok"]
    assert len({each["check_in_id"] for each in checks}) == 1


def test_a_run_that_snoozes_is_the_same_check_in_when_it_goes_on(sent: Sent) -> None:
    @forkq.every("0 3 * * *", name="nightly")
    @forkq.job(name="app.Night")
    def night() -> None:
        """Never run here."""

    def snoozes() -> None:
        raise forkq.Snooze(30)

    job = {"class": "app.Night", "jid": "a", "forkq": {"cron": "nightly"}}
    with pytest.raises(forkq.Snooze):
        middleware.server.run(job, snoozes)
    middleware.server.run(job, lambda: None)
    checks = sent.of("check_in")
    assert [each["status"] for each in checks] == ["in_progress", "in_progress", "ok"]
    assert len({each["check_in_id"] for each in checks}) == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [(forkq.Snooze(30), "ok"), (forkq.Discard("old"), "ok"), (forkq.Cancelled(), "cancelled")],
)
def test_the_status_of_what_a_job_decides(sent: Sent, error: BaseException, status: str) -> None:
    def perform_job() -> None:
        raise error

    with pytest.raises(type(error)):
        middleware.server.run({"class": "app.Ping", "jid": "a"}, perform_job)
    assert not sent.errors
    assert sent.one("transaction")["contexts"]["trace"]["status"] == status


def test_a_failure_whose_retry_would_be_too_late_is_reported(
    sent: Sent, jobs: testing.RecordedJobs
) -> None:
    @forkq.job(name="app.Late", expires_in=10, retry_in=lambda count, error, job: 60)
    def late() -> None:
        raise LookupError("not there")

    late.perform_async()
    jobs.drain(check=False)
    assert sent.errors == ["not there"]
    assert sent.one("event")["tags"]["outcome"] == "expired"


def test_a_periodic_job_of_the_file(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry.make(name="reports", cron="0 5 * * 1", job={"class": "app.Report", "args": []})
    config = SimpleNamespace(cron=(entry,))
    monkeypatch.setattr(default_client, "server_config", lambda: config)
    middleware.server.run({"class": "app.Report", "forkq": {"cron": "reports"}}, lambda: None)
    assert [each["monitor_slug"] for each in sent.of("check_in")] == ["reports"] * 2
    assert sent.of("check_in")[0]["monitor_config"] == {
        "schedule": {"type": "crontab", "value": "0 5 * * 1"},
        "timezone": "UTC",
    }


def test_slugs() -> None:
    assert slug_of("app.tasks.Clean") == "app-tasks-clean"
    long = slug_of("x" * 60)
    assert len(long) == 50
    assert long != slug_of("x" * 61)
    assert 0 < len(slug_of("…")) <= 50


def test_without_a_client_nothing_happens(jobs: testing.RecordedJobs) -> None:
    sentry_sdk.get_global_scope().set_client(None)
    sentry.instrument()
    fails(retry=0).perform_async()
    [job] = jobs
    assert "trace_propagation_headers" not in json.loads(job.raw)
    assert jobs.drain(check=False) == 1


def test_a_real_child_reports_what_no_job_raised(
    sent: Sent, pushes_here: Redis, redis_server: Server
) -> None:
    """A malformed payload, and a job that the app does not have."""
    with InProcessChild(redis_server.url, queue="mail", concurrency=1):
        pushes_here.lpush("queue:mail", "no json")
        pushes_here.lpush("queue:mail", json.dumps({"class": "app.None", "jid": "n", "retry": 0}))
        wait_until(lambda: len(sent.of("event")) == 2, what="both reports")
    malformed, unknown = sent.of("event")
    assert malformed["tags"] == {"queue": "mail"}
    assert malformed["exception"]["values"][0]["type"] == "MalformedPayload"
    assert unknown["exception"]["values"][0]["type"] == "UnknownJob"
    assert (unknown["tags"]["class"], unknown["tags"]["jid"]) == ("app.None", "n")


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_coroutines_that_run_at_once_have_a_scope_each(
    sent: Sent, pushes_here: Redis, redis_server: Server, kind: Kind
) -> None:
    """What a job says of itself is in the report of its own failure, and in no other."""
    gate, begun = threading.Event(), list[int]()

    @forkq.job(name="app.Load", queue="mail", retry=0)
    async def load(number: int) -> None:
        sentry_sdk.set_tag("number", number)
        begun.append(number)
        while not gate.is_set():
            await asyncio.sleep(0.001)
        sentry_sdk.add_breadcrumb(message=f"load {number}")
        raise ValueError(number)

    jids = load.perform_bulk([[number] for number in range(3)])
    with InProcessChild(redis_server.url, queue="mail", concurrency=3, kind=kind):
        wait_until(lambda: len(begun) == 3, what="all three at once")
        gate.set()
        wait_until(lambda: len(sent.of("event")) == 3, what="the reports")
    found = {event["tags"]["jid"]: event for event in sent.of("event")}
    assert sorted(found) == sorted(jids)
    for number, jid in enumerate(jids):
        event = found[jid]
        assert event["exception"]["values"][-1]["value"] == str(number)
        assert event["tags"]["number"] == number
        assert [crumb["message"] for crumb in event["breadcrumbs"]["values"]] == [f"load {number}"]
    assert sorted(each["transaction"] for each in sent.of("transaction")) == ["app.Load"] * 3
