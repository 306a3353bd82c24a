"""Crash records: each job of a dead owner gets one; a job with too many is buried."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from forkq.store import crash_record
from forkq.store.crash_record import DEADLY_CRASHES, Lease, ProcessDeath, spliced
from forkq.wire.payload import dumps
from forkq.wire.printable import class_and_jid
from forkq.wire.times import now

HOUR = 3600.0


def stamped(
    payload: dict[str, Any] | bytes, crash: ProcessDeath | None = None
) -> tuple[str, bytes]:
    raw = payload if isinstance(payload, bytes) else dumps(payload)
    where, keep, text = crash_record.stamped(
        raw, "mail", crash or ProcessDeath(signal=9, alone=True)
    )
    return where, raw[:keep] + text if keep else text


def job(**keys: Any) -> dict[str, Any]:
    return {"class": "J", "args": [], "jid": "m1", "queue": "mail", **keys}


def crashes(*ages: float) -> dict[str, Any]:
    """The key of a job whose process died so many seconds ago, while the job ran alone."""
    return {"crashes": [{"at": now() - age, "signal": 9, "alone": True} for age in ages]}


def failure(payload: bytes) -> str:
    """Why a child that fetches the job shall settle it and not run it; "" if it shall run it."""
    found = json.loads(payload)["forkq"]
    assert found["suspect" if "failed" not in found else "crashes"]
    return str(found["failed"]["message"]) if "failed" in found else ""


def test_a_record_says_when_how_and_where() -> None:
    before = now()
    verdict, payload = stamped(job(), ProcessDeath(signal=11, rss=2048))
    assert verdict == "isolate"
    [record] = json.loads(payload)["forkq"]["crashes"]
    assert before <= record.pop("at") <= now()
    host = socket.gethostname()
    assert record == {"signal": 11, "exit": None, "rss": 2048, "jobs": 1, "host": host}


def test_a_reason_stands_in_the_record_where_there_is_one() -> None:
    _, payload = stamped(job(), ProcessDeath(reason="host lost"))
    assert json.loads(payload)["forkq"]["crashes"][0]["reason"] == "host lost"


def test_everything_else_in_the_payload_is_unchanged() -> None:
    mine = job(custom={"k": []}, retry_count=3, forkq={"other": 1})
    found = json.loads(stamped(mine)[1])
    assert found.pop("forkq").keys() == {"other", "crashes", "suspect"}
    mine.pop("forkq")
    assert found == mine


def test_the_third_crash_of_a_job_that_ran_alone_within_72_hours_ends_it() -> None:
    """A solo child is to bury it, since only a child can call the app's death handlers."""
    assert DEADLY_CRASHES == 3
    assert failure(stamped(job(forkq=crashes(HOUR)))[1]) == ""
    verdict, payload = stamped(job(forkq=crashes(71 * HOUR, HOUR)))
    assert verdict == "isolate_last"
    assert "3 times within 72 hours while this job ran alone" in failure(payload)
    assert failure(payload).endswith("last by signal 9")
    found = json.loads(payload)["forkq"]
    assert len(found["crashes"]) == 3


def test_a_crash_with_other_jobs_in_progress_makes_a_suspect_and_does_not_count() -> None:
    _, payload = stamped(job(forkq=crashes(3, 2, 1)), ProcessDeath(signal=9, jobs=2))
    assert failure(payload) == ""
    company = {"crashes": [{"at": now(), "jobs": 5}] * 9}
    _, payload = stamped(job(forkq=company))
    assert failure(payload) == ""
    assert json.loads(payload)["forkq"]["suspect"] is True


def test_a_job_that_kills_the_child_that_is_to_bury_it_is_buried_here() -> None:
    _, payload = stamped(job(forkq=crashes(1, 2)))
    assert stamped(payload, ProcessDeath(signal=9, jobs=2))[0] == "isolate"
    verdict, payload = stamped(payload)
    assert verdict == "bury"
    found = json.loads(payload)
    assert found["error_class"] == "forkq.errors.Crashed"
    assert found["queue"] == "mail"
    assert now() - found["failed_at"] < 5


def test_a_job_may_have_a_budget_of_its_own() -> None:
    assert failure(stamped(job(crashes=1))[1]).startswith("its process died 1 time within")
    for budget in (5, 20, 100):
        assert failure(stamped(job(crashes=budget, forkq=crashes(*range(budget - 2))))[1]) == ""
        assert failure(stamped(job(crashes=budget, forkq=crashes(*range(budget - 1))))[1]) != ""


def test_no_budget_is_larger_than_a_push_may_give() -> None:
    assert failure(stamped(job(crashes=10**30, forkq=crashes(*range(99))))[1]) != ""


@pytest.mark.parametrize("budget", [0, -1, "x", None, True, 2.0])
def test_a_budget_that_is_no_number_of_crashes_is_the_default(budget: Any) -> None:
    assert failure(stamped(job(crashes=budget, forkq=crashes(1)))[1]) == ""
    assert failure(stamped(job(crashes=budget, forkq=crashes(1, 2)))[1]) != ""


def test_a_job_may_run_again_after_any_number_of_crashes() -> None:
    """Each time it waits longer: in the schedule, where it needs the name of its queue."""
    payload = dumps(job(on_crash="requeue", queue="another"))
    pauses = []
    for _ in range(50):
        at = now()
        verdict, payload = stamped(payload)
        pauses.append(float(verdict) - at)
        assert failure(payload) == ""
    found = json.loads(payload)
    assert (len(found["forkq"]["crashes"]), found["queue"]) == (10, "mail")
    assert 0.25 <= pauses[0] <= 0.6
    assert all(128 <= pause <= 301 for pause in pauses[10:])


def test_a_crash_among_others_makes_no_pause() -> None:
    """It may not be the reason."""
    assert stamped(job(on_crash="requeue"), ProcessDeath(signal=9, jobs=2))[0] == "isolate"


def test_crashes_of_long_ago_do_not_count() -> None:
    assert failure(stamped(job(forkq=crashes(73 * HOUR, 100 * HOUR, HOUR)))[1]) == ""


def test_a_buried_job_keeps_the_time_of_its_first_failure() -> None:
    marks = {**crashes(1, 2, 3), "failed": {}}
    _, payload = stamped(job(forkq=marks, failed_at=1795216066.5))
    found = json.loads(payload)
    assert found["failed_at"] == 1795216066.5
    assert now() - found["retried_at"] < 5


def test_a_large_buried_job_keeps_it_too_where_it_is_not_read() -> None:
    """In either end of the payload, before the arguments or after them."""
    marks = {**crashes(1, 2, 3), "failed": {"class": "X", "message": "y"}}
    large = {"args": ["x" * 9000]}
    for before, after in (({"failed_at": 1795216066.5}, {}), ({}, {"failed_at": 1795216066.5})):
        raw = dumps({**job(), **before, **large, **after, "forkq": marks})
        lease = Lease(1, b"o/1", b"ends", raw[:512], raw[-4096:])
        move = spliced(lease, "mail", ProcessDeath(signal=9, alone=True))
        assert move is not None
        found = json.loads(raw[: move.keep] + move.text)
        assert (move.verdict, found["failed_at"]) == ("bury", 1795216066.5)
        assert now() - found["retried_at"] < 5


def test_arguments_of_a_large_job_are_not_taken_for_its_own_keys() -> None:
    """The program that pushed it has sorted its keys, so its arguments come first."""
    looks_like = {"class": "Innocent", "jid": "x", "crashes": 1, "on_crash": "requeue"}
    args = ["x" * 9000, looks_like]
    raw = dumps(dict(sorted(job(args=args).items())))
    lease = Lease(1, b"o/1", b"bare", raw[:512], raw[-4096:])
    move = spliced(lease, "mail", ProcessDeath(signal=9, alone=True))
    assert (lease.counted_as, lease.job) == ("J", "J m1")
    assert move is not None
    assert move.verdict == "isolate_last"
    assert "failed" not in json.loads(raw[:-1] + move.text)["forkq"], "one crash ends no job"


@pytest.mark.parametrize(
    ("crash", "words"),
    [
        (ProcessDeath(signal=6, alone=True), "signal 6"),
        (ProcessDeath(exit=1, alone=True), "exit code 1"),
        (ProcessDeath(reason="lost", alone=True), "lost"),
    ],
)
def test_a_buried_job_says_how_its_last_process_died(crash: ProcessDeath, words: str) -> None:
    _, payload = stamped(job(forkq=crashes(1, 2)), crash)
    assert failure(payload).endswith(f"last by {words}")


@pytest.mark.parametrize("raw", [b"{nope", b"[1]", b""])
def test_bytes_that_are_no_job_go_unchanged_to_a_solo_child(raw: bytes) -> None:
    """It buries them. If it dies of that, they are buried here; JSON that is no object in one."""
    assert stamped(raw, ProcessDeath(signal=9)) == ("isolate", raw)
    verdict, payload = stamped(raw)
    assert verdict == "bury"
    assert payload == raw or json.loads(payload)["args"] == [raw.decode()]
    assert (payload == raw) is (raw != b"[1]")


def test_arguments_that_no_process_can_read_stay_as_they_are() -> None:
    """The master does not read them. A processor will, and will bury the job."""
    raw = b'{"class":"A","args":["\xff"]}'
    verdict, payload = stamped(raw)
    assert verdict == "isolate_last"
    assert payload.startswith(raw[:-1])


def test_the_death_of_a_whole_tree_makes_a_suspect_at_the_second_time() -> None:
    """It says little about any single job."""
    tree = ProcessDeath(reason="host lost", jobs=9, of_tree=True)
    verdict, payload = stamped(job(), tree)
    [record] = json.loads(payload)["forkq"]["crashes"]
    assert (verdict, record["tree"]) == ("requeue", True)
    assert "suspect" not in json.loads(payload)["forkq"]
    verdict, payload = stamped(payload, tree)
    assert verdict == "isolate"
    assert json.loads(payload)["forkq"]["suspect"] is True


def test_deaths_of_whole_trees_of_long_ago_make_no_suspect() -> None:
    old = {"crashes": [{"at": now() - 73 * HOUR, "tree": True}]}
    assert stamped(job(forkq=old), ProcessDeath(of_tree=True))[0] == "requeue"


def test_a_job_with_whole_trees_on_record_has_twice_the_budget() -> None:
    payload = dumps(job(forkq={"crashes": [{"at": now(), "tree": True}], "suspect": True}))
    for _ in range(2 * DEADLY_CRASHES - 1):
        verdict, payload = stamped(payload)
        assert (verdict, failure(payload)) == ("isolate_last", "")
    assert "6 times within 72 hours" in failure(stamped(payload)[1])


@pytest.mark.parametrize(
    "found",
    [1, None, [], "x", {"crashes": 5}, {"crashes": [1, None, "x"]}, {"crashes": [{"at": "noon"}]},
     {"crashes": [{"at": 10**400}]}, {"crashes": [{"at": True}]}, {"crashes": [{}]}],
    ids=lambda found: repr(found)[:30],
)  # fmt: skip
def test_other_values_under_the_key_forkq_do_no_harm(found: Any) -> None:
    verdict, payload = stamped(job(forkq=found))
    assert verdict == "isolate_last"
    assert json.loads(payload)["forkq"]["crashes"][-1]["signal"] == 9


def test_milliseconds_are_read_as_such() -> None:
    ages = (60, 90)
    recent = {"crashes": [{"at": int((now() - age) * 1000), "alone": True} for age in ages]}
    assert failure(stamped(job(forkq=recent))[1]) != ""


@pytest.mark.parametrize("raw", [b"{nope", b"[]", b"\xff"])
def test_a_job_is_named_by_class_and_jid_and_never_by_its_arguments(raw: bytes) -> None:
    assert class_and_jid(dumps(job(args=["secret"]))) == "J m1"
    assert class_and_jid(raw) == "malformed payload"
