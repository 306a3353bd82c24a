"""What people see of results: `forkq result`, `forkq find` and the API below them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import middleware, registry
from forkq.api.features.results import job_result
from forkq.wire.keys import Keys
from forkq.wire.times import now
from tests.redis.in_process_child import InProcessChild
from tests.redis.in_process_clock import InProcessClock
from tests.redis.shell import Shell
from tests.support.server import Server
from tests.support.waiting import wait_until

KEYS = Keys()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())


def ended(redis: Redis, jid: str, **found: Any) -> None:
    known = {"outcome": "done", "class": "Total", "at": now(), **found}
    redis.set(KEYS.result(jid), json.dumps(known, separators=(",", ":")), ex=3600)


def test_the_command_says_what_a_job_has_returned(
    environment: None, client: forkq.Client, redis: Redis, shell: Shell
) -> None:
    ended(redis, "j1", value={"sum": 7})
    assert shell("result j1") == 0
    assert shell.out.startswith(
        'j1 (Total) is done, and has returned {"sum":7}; its result expires in '
    )
    assert shell("result j1 --json") == 0
    found = json.loads(shell.out)
    assert (found["outcome"], found["value"], found["job"]) == ("done", {"sum": 7}, "Total")
    assert found["until"] - found["at"] == pytest.approx(3600, abs=5)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"outcome": "dead", "error": {"class": "ValueError", "message": "no\x1b[2J"}},
         r"is dead: ValueError: no\x1b[2J"),
        ({"outcome": "cancelled", "error": {"class": "", "message": "it was cancelled"}},
         "is cancelled: it was cancelled"),
        ({"error": {"class": "too large", "message": "300 KB"}},
         "is done; what it has returned was not kept: 300 KB"),
    ],
)  # fmt: skip
def test_the_command_says_how_a_job_has_ended(
    environment: None, client: forkq.Client, redis: Redis, shell: Shell, found: Any, said: str
) -> None:
    ended(redis, "j1", **found)
    assert shell("result j1") == (0 if "outcome" not in found else 1)
    assert said in shell.out
    assert shell("result j1 --json") == (0 if "outcome" not in found else 1)
    assert json.loads(shell.out)["error"] == found["error"]


def test_the_command_says_what_it_does_not_know(
    environment: None, client: forkq.Client, redis: Redis, shell: Shell
) -> None:
    @forkq.job(name="Total", result_ttl=60)
    def total() -> None: ...

    jid = total.perform_async()
    assert shell(f"result {jid}") == 1
    assert "(Total): it waits or runs; its result expires in" in shell.out
    assert (shell("result none"), "none is unknown" in shell.out) == (1, True)
    assert (shell("result none --json"), json.loads(shell.out)["outcome"]) == (1, None)


def test_find_says_how_a_job_has_ended(
    environment: None, client: forkq.Client, redis: Redis, shell: Shell
) -> None:
    ended(redis, "j1", value=7)
    assert shell("find j1") == 1
    assert shell.out == "j1 is nowhere: it is done, and has returned 7\n"
    assert shell("find j1 --json") == 1
    assert json.loads(shell.out)["result"]["value"] == 7


ENDS = {
    "done": "it is done, and has returned 7",
    "dropped": "it is dropped: ValueError: 7",
    "discarded": "it is discarded: forkq.errors.Discard: old",
    "expired": "it is expired: it was not run in time",
    "cancelled": "it was cancelled, at ",
    "replaced": "it is replaced: a newer job with the same arguments has taken its place",
    "deleted": "it is deleted: it was deleted",
}


def test_find_says_of_each_end_what_it_was(
    environment: None, client: forkq.Client, redis: Redis, redis_server: Server, shell: Shell
) -> None:
    """Of jobs that keep a result. What is cancelled is known of every job."""

    @forkq.job(name="Ends", result_ttl=60, retry=0, dead=False)
    def ends(how: str) -> int:
        if how == "discarded":
            raise forkq.Discard("old")
        if how == "dropped":
            raise ValueError(7)
        return 7

    kinds: dict[str, Any] = {
        "expired": {"expires_in": 0.05},
        "replaced": {"on_duplicate": "replace"},
    }
    pushed = dict[str, str]()
    for how in ENDS:
        pushed[how] = ends.set(unique_for=60, **kinds.get(how, {})).perform_async(how)
    latest = now()
    ends.set(unique_for=60, on_duplicate="replace").perform_async("replaced")
    [entry] = [each for each in forkq.Queue("default") if each.jid == pushed["deleted"]]
    assert entry.delete()
    wait_until(lambda: now() > latest + 0.1, what="the end of its time")

    def are_known() -> bool:
        found = [job_result(jid) for jid in pushed.values()]
        return all(each is not None and each.outcome for each in found)

    with InProcessClock(redis_server.url):
        assert forkq.cancel(pushed["cancelled"], wait=20) == "removed"
        with InProcessChild(redis_server.url):
            wait_until(are_known, what="all ends")
    for how, said in ENDS.items():
        assert shell(f"find {pushed[how]}") == 1
        assert shell.out.startswith(f"{pushed[how]} is nowhere: {said}")
        assert shell(f"find {pushed[how]} --json") == 1
        assert json.loads(shell.out)["result"]["outcome"] == how


def test_results_of_jobs_with_secrets_are_not_shown(
    environment: None, client: forkq.Client, redis: Redis, shell: Shell
) -> None:
    @forkq.job(name="Login", result_ttl=60)
    def login(user: str, password: str) -> None: ...

    @forkq.job(name="Hidden", result_ttl=60, secret=True)
    def hidden(user: str) -> None: ...

    for name in ("Login", "Hidden"):
        ended(redis, name, **{"class": name, "value": "hunter2"})
        assert shell(f"result {name}") == 0
        assert "hunter2" not in shell.out
        assert '"***"' in shell.out
    ended(redis, "other", value={"token": "hunter2", "url": "redis://u:hunter2@h"})
    assert shell("result other --json") == 0
    assert "hunter2" not in shell.out


def test_what_another_program_has_written_is_not_shown(client: forkq.Client, redis: Redis) -> None:
    redis.set(KEYS.result("j1"), "x")
    redis.rpush(KEYS.result("j2"), "x")
    assert (job_result("j1"), job_result("j2")) == (None, None)
