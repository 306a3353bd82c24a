"""Crash records: each job of a dead owner gets one; a job with too many is buried."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from forkq.store import crash_record
from forkq.store.crash_record import DEADLY_CRASHES, Crash
from forkq.wire.payload import dumps
from forkq.wire.printable import class_and_jid
from forkq.wire.times import now

HOUR = 3600.0


def stamped(payload: dict[str, Any] | bytes, crash: Crash | None = None) -> tuple[str, bytes]:
    raw = payload if isinstance(payload, bytes) else dumps(payload)
    return crash_record.stamped(raw, "mail", crash or Crash(signal=9))


def job(**keys: Any) -> dict[str, Any]:
    return {"class": "J", "args": [], "jid": "m1", "queue": "mail", **keys}


def crashes(*ages: float) -> dict[str, Any]:
    """The key of a job whose process died so many seconds ago."""
    return {"crashes": [{"at": now() - age, "signal": 9} for age in ages]}


def test_a_record_says_when_how_and_where() -> None:
    before = now()
    verdict, payload = stamped(job(), Crash(signal=11, rss=2048))
    assert verdict == "requeue"
    [record] = json.loads(payload)["forkq"]["crashes"]
    assert before <= record.pop("at") <= now()
    assert record == {"signal": 11, "exit": None, "rss": 2048, "host": socket.gethostname()}


def test_a_reason_stands_in_the_record_where_there_is_one() -> None:
    _, payload = stamped(job(), Crash(reason="host lost"))
    assert json.loads(payload)["forkq"]["crashes"][0]["reason"] == "host lost"


def test_everything_else_in_the_payload_is_unchanged() -> None:
    mine = job(custom={"k": []}, retry_count=3, forkq={"other": 1})
    found = json.loads(stamped(mine)[1])
    assert found.pop("forkq").keys() == {"other", "crashes"}
    mine.pop("forkq")
    assert found == mine


def test_the_third_crash_within_72_hours_buries_with_the_reason() -> None:
    assert DEADLY_CRASHES == 3
    assert stamped(job(forkq=crashes(HOUR)))[0] == "requeue"
    verdict, payload = stamped(job(forkq=crashes(71 * HOUR, HOUR)))
    assert verdict == "bury"
    found = json.loads(payload)
    assert found["error_class"] == "forkq.errors.Crashed"
    assert "3 times within 72 hours" in found["error_message"]
    assert "signal 9" in found["error_message"]
    assert found["queue"] == "mail"
    assert now() - found["failed_at"] < 5
    assert len(found["forkq"]["crashes"]) == 3


def test_crashes_of_long_ago_do_not_count() -> None:
    assert stamped(job(forkq=crashes(73 * HOUR, 100 * HOUR, HOUR)))[0] == "requeue"


def test_a_buried_job_keeps_the_time_of_its_first_failure() -> None:
    _, payload = stamped(job(forkq=crashes(1, 2), failed_at=1795216066.5))
    assert json.loads(payload)["failed_at"] == 1795216066.5


@pytest.mark.parametrize(
    ("crash", "words"),
    [(Crash(signal=6), "signal 6"), (Crash(exit=1), "exit code 1"), (Crash(reason="lost"), "lost")],
)
def test_a_buried_job_says_how_its_last_process_died(crash: Crash, words: str) -> None:
    _, payload = stamped(job(forkq=crashes(1, 2)), crash)
    assert json.loads(payload)["error_message"].endswith(f"last by {words}")


@pytest.mark.parametrize("raw", [b"{nope", b"[1]", b"", b'{"class":"A","args":["\xff"]}'])
def test_bytes_that_are_no_job_go_back_unchanged(raw: bytes) -> None:
    assert stamped(raw) == ("requeue", raw)


@pytest.mark.parametrize(
    "found",
    [1, None, [], "x", {"crashes": 5}, {"crashes": [1, None, "x"]}, {"crashes": [{"at": "noon"}]},
     {"crashes": [{"at": 10**400}]}, {"crashes": [{"at": True}]}, {"crashes": [{}]}],
    ids=lambda found: repr(found)[:30],
)  # fmt: skip
def test_other_values_under_the_key_forkq_do_no_harm(found: Any) -> None:
    verdict, payload = stamped(job(forkq=found))
    assert verdict == "requeue"
    assert json.loads(payload)["forkq"]["crashes"][-1]["signal"] == 9


def test_milliseconds_are_read_as_such() -> None:
    recent = {"crashes": [{"at": int((now() - 60) * 1000)}, {"at": int((now() - 90) * 1000)}]}
    assert stamped(job(forkq=recent))[0] == "bury"


@pytest.mark.parametrize("raw", [b"{nope", b"[]", b"\xff"])
def test_a_job_is_named_by_class_and_jid_and_never_by_its_arguments(raw: bytes) -> None:
    assert class_and_jid(dumps(job(args=["secret"]))) == "J m1"
    assert class_and_jid(raw) == "malformed payload"
