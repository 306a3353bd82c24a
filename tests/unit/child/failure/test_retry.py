"""What becomes of a job that failed: docs/wire.md, "Retry"."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from forkq.child.failure.retry import Bury, Decision, Drop, Retry, decide
from forkq.errors import Crashed, Shutdown, caused_by_shutdown
from forkq.registry import DISCARD, KILL, JobSpec
from forkq.values import replace
from forkq.wire.lease import UnitOfWork
from forkq.wire.payload import dumps
from forkq.wire.times import now

HUGE = 10**400  # an integer that no float can hold


class Case:
    """One failed job, and what was complained of on the way."""

    def __init__(self) -> None:
        self.complaints: list[tuple[BaseException, str]] = []

    def complain(self, error: BaseException, meaning: str) -> None:
        self.complaints.append((error, meaning))

    def decide(
        self,
        payload: dict[str, Any] | bytes,
        error: BaseException | None = None,
        *,
        spec: JobSpec | None = None,
        queue: str = "default",
    ) -> Decision:
        raw = payload if isinstance(payload, bytes) else dumps(payload)
        unit = UnitOfWork(1, queue, 1, raw)
        return decide(unit, spec, error or ValueError("boom é"), self.complain)


@pytest.fixture
def case() -> Case:
    return Case()


def job(**keys: Any) -> dict[str, Any]:
    return {"class": "J", "args": [1], "jid": "m1", "retry": True, "queue": "default", **keys}


def spec(
    retry_in: Callable[..., Any] | None = None,
    retries_exhausted: Callable[..., Any] | None = None,
    **options: Any,
) -> JobSpec:
    return JobSpec("J", lambda running: print, options, retry_in, retries_exhausted)


def retried(decision: Decision) -> dict[str, Any]:
    assert isinstance(decision, Retry), decision
    found: dict[str, Any] = json.loads(decision.payload)
    return found


def buried(decision: Decision) -> dict[str, Any]:
    assert isinstance(decision, Bury), decision
    found: dict[str, Any] = json.loads(decision.payload)
    assert decision.job == found
    return found


def delay(decision: Decision) -> float:
    assert isinstance(decision, Retry), decision
    return decision.at - now()


# The options of a definition, and backoff


class Flaky(Exception):
    """Worth another try."""


class Timeout(Flaky):
    """Of a service."""


def test_only_the_errors_of_retry_on_are_retried(case: Case) -> None:
    exhausted: list[Any] = []
    given = replace(spec(retries_exhausted=lambda *of: exhausted.append(of)), retry_on=(Flaky,))
    assert isinstance(case.decide(job(), Timeout(), spec=given), Retry)
    assert buried(case.decide(job(), KeyError("x"), spec=given))["error_class"] == "KeyError"
    assert len(exhausted) == 1
    assert isinstance(case.decide(job(dead=False), KeyError("x"), spec=given), Drop)


def test_the_errors_of_discard_on_drop_the_job_without_death_handlers(case: Case) -> None:
    given = replace(spec(), retry_on=(Flaky,), discard_on=(Timeout,))
    for retry in (True, False, 0):
        assert case.decide(job(retry=retry), Timeout(), spec=given) == Drop(None)
    assert isinstance(case.decide(job(), Flaky(), spec=given), Retry)
    assert isinstance(case.decide(job(), Timeout()), Retry)  # a middleware raised it


def test_a_timedelta_of_retry_in_is_exact(case: Case) -> None:
    given = spec(retry_in=lambda *_: timedelta(seconds=1.5))
    for count in (0, 9):
        again = job(retry_count=count, failed_at=1.5)
        assert delay(case.decide(again, spec=given)) == pytest.approx(1.5, abs=0.5)


@pytest.mark.parametrize("wanted", [timedelta(0), timedelta(seconds=-1)])
def test_a_timedelta_that_is_not_positive_is_told(case: Case, wanted: timedelta) -> None:
    assert 15 <= delay(case.decide(job(), spec=spec(retry_in=lambda *_: wanted))) <= 25.5
    assert len(case.complaints) == 1


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (1, [1, 1, 1]),
        (2.5, [2.5, 2.5]),
        ([10, 30, 60], [10, 30, 60, 60, 60]),
    ],
)
def test_a_backoff_is_exact(case: Case, backoff: Any, delays: list[float]) -> None:
    for tried, expected in enumerate(delays):
        again = {"retry_count": tried - 1, "failed_at": 1.5} if tried else {}
        found = delay(case.decide(job(backoff=backoff, **again), spec=spec()))
        assert found == pytest.approx(expected, abs=0.5)


def test_an_exponential_backoff_doubles_to_an_hour(case: Case) -> None:
    for tried, expected in enumerate([10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]):
        again = {"retry_count": tried - 1, "failed_at": 1.5} if tried else {}
        found = delay(case.decide(job(backoff="exponential", **again), spec=spec()))
        assert expected - 0.5 <= found <= expected * 1.1
    huge = job(backoff="exponential", retry_count=10**300, failed_at=1.5, retry_for=1e9)
    huge["failed_at"] = now() * 1000
    assert 3599 <= delay(case.decide(huge, spec=spec())) <= 3960


def test_the_hook_comes_before_the_backoff(case: Case) -> None:
    given = spec(retry_in=lambda *_: timedelta(seconds=99))
    assert delay(case.decide(job(backoff=1), spec=given)) == pytest.approx(99, abs=0.5)
    assert delay(case.decide(job(backoff=1), spec=spec(retry_in=lambda *_: None))) <= 1.5


@pytest.mark.parametrize("backoff", [0, -1, "soon", [], [1, "x"], None, {"a": 1}, True, 1e300])
def test_a_backoff_of_another_program_that_is_none_is_told(case: Case, backoff: Any) -> None:
    assert 15 <= delay(case.decide(job(backoff=backoff), spec=spec())) <= 25.5
    assert len(case.complaints) == 1


# 1. retry false, retry N


def test_retry_false_is_dropped_without_a_dead_entry_and_for_the_death_handlers(
    case: Case,
) -> None:
    decision = case.decide(job(retry=False))
    assert isinstance(decision, Drop)
    assert decision.job is not None
    assert decision.job["jid"] == "m1"


@pytest.mark.parametrize(("retry", "count"), [(True, 23), (3, 1), (1, None)])
def test_it_is_retried_while_the_count_is_below_the_maximum(
    case: Case, retry: Any, count: int | None
) -> None:
    extra = {} if count is None else {"retry_count": count, "failed_at": 1.5}
    assert retried(case.decide(job(retry=retry, **extra)))["retry"] == retry


@pytest.mark.parametrize(("retry", "count"), [(True, 24), (3, 2), (0, None), (1, 0), (-1, None)])
def test_it_is_exhausted_when_the_count_reaches_the_maximum(
    case: Case, retry: Any, count: int | None
) -> None:
    extra = {} if count is None else {"retry_count": count, "failed_at": 1.5}
    assert buried(case.decide(job(retry=retry, **extra)))["retry"] == retry


@pytest.mark.parametrize("retry", [{}, {"retry": None}])
def test_a_payload_that_does_not_say_is_retried_like_true(case: Case, retry: Any) -> None:
    payload = {"class": "Unknown", "args": [], **retry}
    assert retried(case.decide(payload))["retry"] is True


def test_a_payload_that_does_not_say_takes_what_its_class_says(case: Case) -> None:
    payload = {"class": "J", "args": []}
    assert isinstance(case.decide(payload, spec=spec(retry=False)), Drop)
    assert isinstance(case.decide(payload, spec=spec(retry=0)), Bury)


@pytest.mark.parametrize("retry", ["3", 2.5, [], {}])
def test_a_retry_that_is_no_number_is_taken_as_25_with_a_warning(case: Case, retry: Any) -> None:
    assert retried(case.decide(job(retry=retry)))["retry"] == retry
    assert "taken as 25" in case.complaints[0][1]
    case.decide(job(retry=retry, retry_count=23, failed_at=1.5))
    assert isinstance(case.decide(job(retry=retry, retry_count=24, failed_at=1.5)), Bury)


# 2. what a failure writes


def test_the_first_failure_sets_failed_at_and_count_zero(case: Case) -> None:
    before = now()
    found = retried(case.decide(job(custom={"k": [1]}, bid="b")))
    assert found["retry_count"] == 0
    assert before <= found.pop("failed_at") <= now()
    assert found == {
        **job(custom={"k": [1]}, bid="b"),
        "retry_count": 0,
        "error_message": "boom é",
        "error_class": "ValueError",
    }


def test_a_job_that_crashed_before_keeps_its_first_failure(case: Case) -> None:
    """It was buried by its crashes, which count no retry, and a person has retried it."""
    crashed = {"failed_at": 1795216066.5, "error_class": "forkq.errors.Crashed"}
    again = buried(case.decide(job(**crashed), Crashed("it died 3 times")))
    ordinary = retried(case.decide(job(**crashed)))
    for found in (again, ordinary):
        assert found["failed_at"] == 1795216066.5
        assert now() - found["retried_at"] < 5
    assert "retry_count" not in again
    assert ordinary["retry_count"] == 0
    first = buried(case.decide(job(failed_at="odd"), Crashed("it died 3 times")))
    assert now() - first["failed_at"] < 5
    assert "retried_at" not in first


def test_later_failures_set_retried_at_and_count_on(case: Case) -> None:
    before = now()
    found = retried(case.decide(job(retry_count=1, failed_at=1795216066.5)))
    assert (found["retry_count"], found["failed_at"]) == (2, 1795216066.5)
    assert before <= found["retried_at"] <= now()


def test_a_count_below_zero_comes_back_to_zero(case: Case) -> None:
    assert retried(case.decide(job(retry_count=-7, failed_at=1.5)))["retry_count"] == 0


@pytest.mark.parametrize("count", [None, "2", 1.5, [], True])
def test_a_count_that_is_none_counts_as_the_first_failure(case: Case, count: Any) -> None:
    assert retried(case.decide(job(retry_count=count)))["retry_count"] == 0


def test_the_message_is_cut_at_ten_thousand_characters(case: Case) -> None:
    assert retried(case.decide(job(), ValueError("é" * 20_000)))["error_message"] == "é" * 10_000


def test_a_message_that_cannot_be_read_or_written_costs_nothing(case: Case) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert "cannot be read" in retried(case.decide(job(), Mute()))["error_message"]
    assert retried(case.decide(job(), ValueError("a\udcff")))["error_message"] == "a?"


def test_the_class_of_an_error_is_its_full_name_or_the_builtin_one(case: Case) -> None:
    assert retried(case.decide(job(), json.JSONDecodeError("x", "", 0)))["error_class"] == (
        "json.decoder.JSONDecodeError"
    )


def deep(levels: int) -> None:
    if levels:
        deep(levels - 1)
    raise KeyError("deep")


@pytest.mark.parametrize(("wanted", "lines"), [(True, 7), (2, 2), (1, 1), (100, 7)])
def test_a_backtrace_is_base64_of_zlib_of_a_json_list_innermost_first(
    case: Case, wanted: Any, lines: int
) -> None:
    try:
        deep(5)
    except KeyError as error:
        found = retried(case.decide(job(backtrace=wanted), error))
    trace = json.loads(zlib.decompress(base64.b64decode(found["error_backtrace"])))
    assert len(trace) == lines
    assert trace[0].startswith(__file__)
    assert trace[0].endswith(":in `deep'")


@pytest.mark.parametrize("keys", [{}, {"backtrace": False}, {"backtrace": None}])
def test_without_backtrace_there_is_none(case: Case, keys: dict[str, Any]) -> None:
    assert "error_backtrace" not in retried(case.decide(job(**keys)))


# 3. retry_for


def test_within_retry_for_the_count_is_ignored(case: Case) -> None:
    keys = {"retry_for": 3600, "retry": 1, "retry_count": 50, "failed_at": now() - 60}
    assert retried(case.decide(job(**keys)))["retry_count"] == 51


def test_after_retry_for_it_is_exhausted_however_low_the_count(case: Case) -> None:
    keys = {"retry_for": 10, "retry_count": 0, "failed_at": now() - 11}
    assert buried(case.decide(job(**keys)))["retry_count"] == 1


def test_retry_for_reads_milliseconds_too(case: Case) -> None:
    failed_at = int((now() - 60) * 1000)
    assert isinstance(case.decide(job(retry_for=50, retry_count=0, failed_at=failed_at)), Bury)
    assert isinstance(case.decide(job(retry_for=70, retry_count=0, failed_at=failed_at)), Retry)


# 4. the delay


@pytest.mark.parametrize("count", [0, 1, 5, 23])
def test_the_delay_is_the_fourth_power_and_15_with_jitter(case: Case, count: int) -> None:
    extra = {"retry_count": count - 1, "failed_at": 1.5} if count else {}
    low = count**4 + 15
    found = [delay(case.decide(job(**extra))) for _ in range(200)]
    assert min(found) >= low - 0.5
    assert max(found) <= low + 10 * (count + 1)
    assert max(found) - min(found) > 5 * (count + 1)


@pytest.mark.parametrize("wanted", [1, 0.5, 3600, 10**9])
def test_retry_in_says_how_long_and_jitter_is_added(case: Case, wanted: float) -> None:
    found = delay(case.decide(job(), spec=spec(lambda count, error, job: wanted)))
    assert wanted - 0.5 <= found <= wanted + 10


def test_retry_in_hears_count_error_and_job(case: Case) -> None:
    called: list[Any] = []
    error = ValueError("x")
    case.decide(
        job(retry_count=1, failed_at=1.5),
        error,
        spec=spec(lambda count, exc, job: called.extend([count, exc, job["jid"]])),
    )
    assert called == [2, error, "m1"]


class Grumpy:
    """An object that does not even let itself be compared."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("do not touch")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "wanted",
    [0, -5, None, True, "60", [60], float("nan"), float("inf"), object(), Grumpy(),
     pytest.param(HUGE, id="huge")],
)  # fmt: skip
def test_anything_else_means_the_default(case: Case, wanted: Any) -> None:
    assert 14 <= delay(case.decide(job(), spec=spec(lambda *_: wanted))) <= 25


@pytest.mark.parametrize("raised", [KeyError("typo"), SystemExit(1)])
def test_an_error_in_retry_in_is_logged_and_means_the_default(
    case: Case, raised: BaseException
) -> None:
    """SystemExit too: it would end the processor, and the job would come back without end."""

    def broken(*_: Any) -> float:
        raise raised

    assert 14 <= delay(case.decide(job(), spec=spec(broken))) <= 25
    [(error, meaning)] = case.complaints
    assert error is raised
    assert "default delay" in meaning


def test_discard_drops_it_and_no_death_handler_hears(case: Case) -> None:
    assert case.decide(job(), spec=spec(lambda *_: DISCARD)) == Drop(None)


def test_kill_buries_it_now(case: Case) -> None:
    assert buried(case.decide(job(), spec=spec(lambda *_: KILL)))["retry_count"] == 0


def test_kill_passes_through_retries_exhausted(case: Case) -> None:
    hooks = spec(lambda *_: KILL, lambda *_: DISCARD)
    assert case.decide(job(), spec=hooks) == Drop(None)


def test_an_exhausted_job_is_not_asked_for_a_delay(case: Case) -> None:
    """As in Sidekiq: a DISCARD there would hide the death from everybody."""
    asked: list[int] = []

    def retry_in(count: int, *_: Any) -> Any:
        asked.append(count)
        return DISCARD

    buried(case.decide(job(retry=0), spec=spec(retry_in)))
    assert asked == []


# 5. retry_queue


def test_a_retry_queue_that_is_no_name_is_passed_over(case: Case) -> None:
    assert retried(case.decide(job(retry_queue=7)))["queue"] == "default"


def test_a_retry_goes_to_the_retry_queue(case: Case) -> None:
    assert retried(case.decide(job(retry_queue="slow")))["queue"] == "slow"


def test_a_retry_goes_to_the_queue_that_it_came_from(case: Case) -> None:
    assert retried(case.decide(job(queue="other"), queue="mail"))["queue"] == "mail"


# 6. exhausted


def test_retries_exhausted_hears_of_it_and_the_job_is_buried(case: Case) -> None:
    called: list[Any] = []
    error = ValueError("x")
    hooks = spec(None, lambda job, exc: called.extend([job["error_message"], exc]))
    found = buried(case.decide(job(retry=0), error, spec=hooks))
    assert called == ["x", error]
    assert found["error_class"] == "ValueError"


def test_retries_exhausted_may_discard_it(case: Case) -> None:
    assert case.decide(job(retry=0), spec=spec(None, lambda *_: DISCARD)) == Drop(None)


def test_an_error_in_retries_exhausted_is_logged_and_changes_nothing(case: Case) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("typo")

    buried(case.decide(job(retry=0), spec=spec(None, broken)))
    assert isinstance(case.complaints[0][0], KeyError)


def test_dead_false_is_dropped_but_for_the_death_handlers(case: Case) -> None:
    decision = case.decide(job(retry=0, dead=False))
    assert isinstance(decision, Drop)
    assert decision.job is not None
    assert decision.job["error_message"] == "boom é"


# 7 is the dead set's own: tests/redis/test_dead_set.py

# 8. shutdown


def chained(link: str, error: BaseException, inner: BaseException) -> BaseException:
    setattr(error, link, inner)
    return error


def test_shutdown_is_no_failure_nor_is_what_it_caused() -> None:
    assert caused_by_shutdown(Shutdown())
    for link in ("__cause__", "__context__"):
        middle = chained(link, KeyError(), Shutdown())
        assert caused_by_shutdown(chained(link, ValueError(), middle))
    assert not caused_by_shutdown(chained("__cause__", ValueError(), KeyError()))


def test_a_circle_of_causes_is_tolerated() -> None:
    one, other = ValueError(), KeyError()
    one.__cause__, other.__cause__ = other, one
    one.__context__ = one
    assert not caused_by_shutdown(one)
    other.__context__ = Shutdown()
    assert caused_by_shutdown(one)


def test_shutdown_is_found_beyond_a_cause_of_another_kind() -> None:
    error = ValueError()
    error.__cause__, error.__context__ = KeyError(), Shutdown()
    assert caused_by_shutdown(error)


# 9. two rings: without a spec no hook is asked, which is all that `decide` knows of it


def test_in_the_outer_ring_the_payload_alone_decides(case: Case) -> None:
    assert 14 <= delay(case.decide(job())) <= 25
    assert isinstance(case.decide(job(retry=0)), Bury)


# What another program may have written


@pytest.mark.parametrize("raw", [b"{nope", b""])
def test_what_is_no_json_is_buried_as_it_came(case: Case, raw: bytes) -> None:
    assert case.decide(raw) == Bury(raw, None)


def test_json_that_is_no_object_is_buried_inside_one(case: Case) -> None:
    decision = case.decide(b"[1]")
    assert isinstance(decision, Bury)
    assert decision.job is None
    assert json.loads(decision.payload)["args"] == ["[1]"]


@pytest.mark.parametrize(
    "keys",
    [
        {"retry_count": HUGE},
        {"retry_count": HUGE, "retry_for": 60},
        {"retry_count": HUGE, "retry": HUGE * 10},
        {"retry_count": -HUGE},
        {"retry": HUGE},
        {"retry": -HUGE},
        {"retry_for": HUGE},
        {"retry_for": -HUGE, "retry_count": 1, "failed_at": 1.5},
        {"retry_for": 60, "retry_count": 1, "failed_at": HUGE},
        {"retry_for": 60, "retry_count": 1, "failed_at": -HUGE},
        {"retry_for": 60, "retry_count": 1, "failed_at": "yesterday"},
        {"retry_for": "1 day"},
        {"backtrace": HUGE},
        {"backtrace": -3},
        {"backtrace": "yes"},
        {"retry_queue": 7},
        {"queue": None},
        {"dead": "no"},
        {"jid": {}},
        {"forkq": 1},
    ],
    ids=lambda keys: ", ".join(f"{key}={str(value)[:6]}" for key, value in keys.items()),
)
def test_nonsense_in_a_payload_never_raises(case: Case, keys: dict[str, Any]) -> None:
    for hooks in (None, spec(lambda *_: 1, lambda *_: None)):
        decision = case.decide({**job(), **keys}, spec=hooks)
        assert isinstance(decision, Retry | Bury | Drop)
        if isinstance(decision, Retry):
            assert decision.at >= now()


@pytest.mark.parametrize(
    "vandal",
    [
        lambda job: job.clear(),
        lambda job: job["args"].append("\ud800"),
        lambda job: job["args"][0].update(a=2),
    ],
    ids=["clears it", "makes it unwritable", "changes an argument"],
)
def test_a_hook_that_changes_its_job_changes_nothing(
    case: Case, vandal: Callable[[dict[str, Any]], None]
) -> None:
    args = [{"a": 1}]

    def retry_in(count: int, error: BaseException, job: dict[str, Any]) -> float:
        vandal(job)
        return 1.0

    assert retried(case.decide(job(args=args), spec=spec(retry_in)))["args"] == args
    given_up = case.decide(job(args=args, retry=0), spec=spec(None, lambda job, _: vandal(job)))
    found = buried(given_up)
    assert (found["args"], found["jid"]) == (args, "m1")
    assert not case.complaints
