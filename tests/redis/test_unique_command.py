"""What people see of locks, and free by hand: `forkq unique`, and the API below it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import api, middleware, registry
from forkq.api import LockFilter, unique_locks
from forkq.api.features import locks as api_locks
from forkq.api.features.locks import places_of
from forkq.errors import ForkqError
from forkq.wire.times import now
from tests.redis.shell import Shell

QUEUE = "queue:default"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())


def index(name: str = "Index", **options: Any) -> Any:
    def perform(doc: int) -> None: ...

    registry._jobs.pop(name, None)
    return forkq.job(name=name, **{"unique_for": 36_000, **options})(perform)


def of_job(jid: str) -> Any:
    [found] = unique_locks(LockFilter(jid=jid))
    return found


def test_the_list_says_who_has_each_lock_and_where_that_is(
    environment: None, client: forkq.Client, redis: Redis, shell: Shell
) -> None:
    waiting = index().perform_async(1)
    due = index().perform_in(900, 2)
    gone = index("Mail").perform_async(3)
    redis.lpop(QUEUE)
    assert shell("unique list") == 0
    lines = {line.split()[2]: line for line in shell.out.splitlines()[1:]}
    assert shell.out.splitlines()[0].split() == ["LOCK", "JOB", "JID", "HELD", "UNTIL", "WHERE"]
    assert lines[waiting].endswith("queued, default")
    assert lines[due].endswith("scheduled, default")
    assert lines[gone].endswith("nowhere")
    assert "in 10 h" in lines[waiting]
    assert shell("unique --json") == 0  # the list comes first
    found = {(one := json.loads(line))["jid"]: one for line in shell.out.splitlines()}
    lock = found[gone]
    assert (lock["job"], lock["where"], len(lock["digest"])) == ("Mail", "nowhere", 32)
    assert lock["until"] - lock["since"] == pytest.approx(36_000, abs=2)
    assert lock["sure"] - lock["since"] == pytest.approx(60, abs=0.1)


def test_filters_choose_locks(
    environment: None, client: forkq.Client, redis: Redis, shell: Shell
) -> None:
    jid = index().perform_async(1)
    mail = index("shop.Mail").perform_async(1)
    redis.hset(f"forkq:unique:{of_job(mail).digest}", "at", round((now() - 700) * 1000))

    def listed(*options: str) -> list[str]:
        shell("unique list --json", *options)
        return [json.loads(line)["jid"] for line in shell.out.splitlines()]

    assert listed() == [mail, jid]  # the oldest first
    assert listed("--class", "Mail") == listed("--older-than", "10m") == [mail]
    assert listed("--class", "I*") == listed("--jid", jid) == [jid]
    assert listed("--limit", "1") == [mail]
    assert shell("unique list --class Other") == 1
    assert shell.out == "there is no lock\n"
    assert shell("unique list --limit 1") == 0
    assert shell.err == "1 of 2 shown; `forkq unique --json` lists all.\n"


def test_a_lock_is_freed_by_hand_and_its_job_stays(
    environment: None, client: forkq.Client, redis: Redis, shell: Shell
) -> None:
    job = index()
    first, second = job.perform_async(1), job.perform_async(2)
    assert shell("unique free", first) == 2
    assert "asks first" in shell.err
    assert shell("unique free --dry-run", first) == 0
    assert shell.out == "1 lock would be freed\n"
    assert job.perform_async(1) == ""
    assert shell("unique free --yes", first) == 0
    assert shell.out == "1 lock freed\n"
    assert shell("unique free --yes", first) == 1
    assert shell.err == "no such lock is held\n"
    assert redis.llen(QUEUE) == 2
    assert job.perform_async(1)
    assert shell("unique free --yes --json", of_job(second).digest) == 0
    assert json.loads(shell.out) == {"matched": 1, "freed": 1}
    assert shell("unique free --yes") == 2
    assert "which locks?" in shell.err
    assert shell("unique free --all --yes") == 0
    assert unique_locks() == []


def test_a_lock_that_another_job_has_by_now_is_not_freed(
    client: forkq.Client, redis: Redis
) -> None:
    lock = of_job(index().perform_async(1))
    redis.hset(f"forkq:unique:{lock.digest}", "jid", "other")
    assert not lock.free()
    assert of_job("other").free()
    assert not of_job_gone("other")
    with pytest.raises(ForkqError, match="there is no lock 'other'"):
        api.free_lock("other")


def of_job_gone(jid: str) -> list[Any]:
    return unique_locks(LockFilter(jid=jid))


def test_free_lock_takes_a_lock_or_a_jid(client: forkq.Client) -> None:
    jid = index().perform_async(1)
    assert api.free_lock(jid).jid == jid
    jid = index().perform_async(1)
    assert api.free_lock(of_job(jid).digest).jid == jid


def test_the_newest_job_that_waits_in_a_freed_lock_is_not_lost(
    environment: None, client: forkq.Client, redis: Redis, shell: Shell
) -> None:
    job = index(on_duplicate="latest")
    running, waiting = job.perform_async(1), job.perform_async(1)
    [lock] = unique_locks()
    assert (lock.jid, lock.newest) == (running, waiting)
    assert shell("unique") == 0
    assert f"queued, default, then {waiting}" in shell.out
    assert lock.free()
    [after] = unique_locks()
    assert (after.jid, after.newest) == (waiting, "")
    assert not lock.free()
    scheduled: Any = redis.zrange("schedule", 0, -1)
    [raw] = scheduled
    assert json.loads(raw)["jid"] == waiting
    assert after.free()
    assert unique_locks() == []


def test_other_keys_are_no_locks(client: forkq.Client, redis: Redis) -> None:
    redis.set("forkq:unique:string", "x")
    redis.hset("forkq:unique:odd", mapping={"jid": b"\xff", "at": "never", "sure": "9" * 40})
    redis.hset("forkq:unique:empty", "class", "A")
    redis.hset("forkq:unique:doubt", "0f", "")
    [odd] = unique_locks()
    assert (odd.digest, odd.since, odd.until, odd.sure) == ("odd", None, None, None)
    assert odd.is_doubted


def test_a_search_that_takes_too_long_says_nothing_of_the_rest(client: forkq.Client) -> None:
    index().perform_async(1)
    assert places_of(unique_locks(), seconds=0.0) == {}


def test_the_keys_that_a_list_looks_at_are_bounded(
    client: forkq.Client, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_locks, "_SCAN", 10)
    redis.mset({f"other:{number}": 1 for number in range(1000)})
    for doc in range(20):
        index().perform_async(doc)
    assert len(unique_locks()) == 20
    assert len(unique_locks(most_keys=200)) < 20


def test_find_shows_the_lock_and_the_expiry(
    environment: None, client: forkq.Client, redis: Redis, shell: Shell
) -> None:
    job = index(expires_in=18_000)
    jid = job.perform_async(1)
    shell("find", jid)
    rows = {line.split()[0]: line for line in shell.out.splitlines()}
    assert "this job has it, until in 10 h at the latest" in rows["lock"]
    assert "in 5 h" in rows["expires_at"]
    shell("find --json", jid)
    found = json.loads(shell.out)
    assert found["expires_at"] == pytest.approx(now() + 18_000, abs=2)
    assert found["lock"]["jid"] == jid
    api.free_lock(jid)
    shell("find", jid)
    assert "free" in next(line for line in shell.out.splitlines() if line.startswith("lock"))
    other = job.perform_async(1)
    shell("find", jid)
    assert f"the job {other} has it" in shell.out
    plain = index(unique_for=0).perform_async(1)
    shell("find --json", plain)
    assert {"lock", "expires_at"}.isdisjoint(json.loads(shell.out))


def test_the_newest_job_is_found_behind_the_one_that_has_the_lock(
    environment: None, client: forkq.Client, redis: Redis, shell: Shell
) -> None:
    job = index(on_duplicate="latest")
    holder, newest = job.perform_async(1), job.perform_async(1)
    assert api.is_alive(holder)
    assert api.is_alive(newest)
    assert shell(f"find {newest}") == 0
    assert shell.out.startswith(f"{newest} waits behind {holder}: it runs in the place of that job")
    assert shell(f"find {newest} --json") == 0
    lock = of_job(holder).digest
    known = {"jid": newest, "job": "Index", "location": "lock", "lock": lock, "behind": holder}
    assert json.loads(shell.out) == known
    assert shell(f"find {holder}") == 0
    assert "queued" in shell.out
    redis.hset(f"forkq:unique:{lock}", "next", "")  # it has ended, and its ticket is left
    assert not api.is_alive(newest)
    assert shell(f"find {newest}") == 1
    assert "is nowhere" in shell.out
