"""A job that kills its process costs its neighbours one repetition, and never their place."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

from forkq.client import Client
from tests.process.shared import (
    APP,
    Journal,
    leased,
    listening,
    payloads,
    push,
    push_many,
    settled,
    solo_children,
    suspects,
    wait_settled,
    wait_swept,
    waiting,
    workers,
)
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

BUDGET = 3
MOST_SOLO = 4  # of the trees that say so
POISON: list[tuple[str, list[Any]]] = [("Die", [9]), ("Segfault", []), ("Exit", [1])]


def crashes_that_counted(job: dict[str, Any]) -> int:
    return sum(crash.get("alone") is True for crash in job["forkq"]["crashes"])


def assert_only_poison_died(
    redis: Redis, journal: Journal, good: list[str], bad: list[str]
) -> None:
    """All good jobs have ended; each bad one was alone when the crashes came that ended it, and has
    killed no more children than it may."""
    assert journal.jids("end") == set(good)
    dead = payloads(redis, "dead")
    assert sorted(job["jid"] for job in dead) == sorted(bad)
    for job in dead:
        assert crashes_that_counted(job) == BUDGET
        assert job["error_class"] == "forkq.errors.Crashed"
    runs = journal.runs()
    assert all(BUDGET <= len(runs[jid]) <= 1 + BUDGET for jid in bad), "the children that it killed"
    assert redis.zcard("retry") == 0


@pytest.mark.parametrize(("name", "args"), POISON, ids=[name for name, _ in POISON])
def test_one_poison_job_among_good_ones_dies_alone(
    redis: Redis,
    redis_server: Server,
    tree: StartTree,
    journal: Journal,
    name: str,
    args: list[Any],
) -> None:
    options = ["-w", "3", "-c", "10", "--log-level", "warning"]
    forkq = tree(redis_server, app=APP, args=options, env=journal.env)
    rows = [[random.choice((0.005, 0.02, 0.1, 0.5))] for _ in range(300)]
    good = push_many(redis_server, "Quick", rows[:40])
    bad = push(redis_server, name, *args)
    good += push_many(redis_server, "Quick", rows[40:])
    wait_until(lambda: settled(redis) and redis.zcard("dead"), deadline=120, what="the end of all")
    assert_only_poison_died(redis, journal, good, [bad])
    assert forkq.stop() == 0


def test_many_poison_jobs_at_once_die_alone(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    options = ["-w", "3", "-c", "10", "--log-level", "warning"]
    forkq = tree(redis_server, app=APP, args=options, env=journal.env)
    good, bad = [], []
    for number in range(10):
        bad.append(push(redis_server, *_flat(POISON[number % len(POISON)])))
        good += push_many(redis_server, "Quick", [[0.01]] * 20)
    wait_until(
        lambda: settled(redis) and redis.zcard("dead") == 10, deadline=180, what="the end of all"
    )
    assert_only_poison_died(redis, journal, good, bad)
    assert forkq.stop() == 0


def _flat(poison: tuple[str, list[Any]]) -> tuple[Any, ...]:
    return (poison[0], *poison[1])


def oom_score_adj(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


@pytest.mark.skipif(not Path("/proc/self/oom_score_adj").exists(), reason="Linux has it")
def test_the_kernel_takes_a_solo_child_first_and_the_master_last(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """When memory runs out. A canary, which is started by exec, is a child as any other."""
    forkq = tree(redis_server, app=APP, args=["-w", "2", "-c", "1"], env=journal.env)
    wait_swept(redis, forkq)
    own = oom_score_adj(forkq.pid)
    room = min(600, 1000 - own)
    assert own == oom_score_adj(os.getpid())
    assert [oom_score_adj(clock.pid) for clock in forkq.children("forkq clock")] == [own]
    ordinary = {oom_score_adj(child.pid) for child in workers(forkq)}
    door = journal.path.with_name("open")
    jid = push(redis_server, "Gate", str(door))
    journal.wait("begin", [jid])
    os.kill(journal.lines("begin")[0].pid, signal.SIGKILL)
    wait_until(lambda: len(journal.runs()[jid]) == 2, what="the suspect's second run")
    solo = {oom_score_adj(child.pid) for child in solo_children(forkq)}
    door.touch()
    wait_settled(redis)
    assert forkq.run("restart", "--wait").returncode == 0
    assert {oom_score_adj(child.pid) for child in workers(forkq)} == ordinary
    assert (ordinary, solo) == ({own + room // 3}, {own + room})


@pytest.mark.slow  # on a busy machine the kernel may take minutes
def test_a_job_that_takes_all_memory_is_named(
    memory_group: Path,
    redis: Redis,
    redis_server: Server,
    tree: StartTree,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel kills its child, and the certificate says why. The limit leaves all other
    processes of the tree enough, or the kernel would kill them, too."""
    enter = f'echo $$ > {memory_group}/cgroup.procs; exec "$@"'
    monkeypatch.setattr(ForkqTree, "wrapper", ["sh", "-c", enter, "sh"])
    forkq = tree(redis_server, app=APP, args=["-w", "2", "-c", "3"], env=journal.env)
    door = journal.path.with_name("open")
    good = push_many(redis_server, "Gate", [[str(door)]] * 2)
    bad = push(redis_server, "Hog")
    wait_until(lambda: redis.zcard("dead"), deadline=60, what=f"the burial in {forkq.log}")
    door.touch()
    wait_settled(redis)
    assert_only_poison_died(redis, journal, good, [bad])
    [dead] = payloads(redis, "dead")
    assert "out of memory" in dead["error_message"]
    assert forkq.stop() == 0


def test_innocent_long_jobs_do_not_wait_for_each_other(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Each runs in a solo child, while the other children go on with other jobs. The solo children
    end when no suspect is left."""
    config = f"[forkq]\nsolo_children = {MOST_SOLO}\n"
    forkq = tree(redis_server, app=APP, config=config, args=["-c", "6"], env=journal.env)
    door = journal.path.with_name("open")
    long = push_many(redis_server, "Gate", [[str(door)]] * (MOST_SOLO + 1))
    journal.wait("begin", long)
    [child] = workers(forkq)
    child.kill()
    wait_until(lambda: len(_alone(forkq, journal)) == MOST_SOLO, what="solo children at work")
    other = push_many(redis_server, "Quick", [[0.01]] * 5)
    journal.wait("end", other)
    assert len(_alone(forkq, journal)) == MOST_SOLO
    wait_until(lambda: len(leased(redis)) == MOST_SOLO, what="Redis to hear that they have ended")
    door.touch()
    wait_settled(redis)
    assert journal.jids("end") == {*long, *other}
    assert all(len(journal.runs()[jid]) == 2 for jid in long)
    wait_until(lambda: not solo_children(forkq), what="the end of the solo children")
    assert redis.zcard("dead") == 0
    assert forkq.stop() == 0


def _alone(tree: ForkqTree, journal: Journal) -> set[int]:
    """The solo children that have begun a job and not ended it."""
    solo = {child.pid for child in solo_children(tree)}
    ended = {(line.pid, line.jid) for line in journal.lines("end")}
    begun = {(line.pid, line.jid) for line in journal.lines("begin")}
    return {pid for pid, _ in begun - ended} & solo


def test_a_suspect_that_fails_alone_is_cleared(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Its retry runs among others again. Its crash stays on record."""
    forkq = tree(redis_server, app=APP, args=["-c", "4"], env=journal.env)
    door = journal.path.with_name("open")
    push_many(redis_server, "Gate", [[str(door)]])
    app = Client(redis_server.url)
    app.push({"class": "Doomed", "args": [str(door)], "retry": 5})
    app.close()
    wait_until(lambda: len(journal.lines("begin")) == 2, what="both jobs")
    wait_swept(redis, forkq)
    workers(forkq)[0].kill()
    wait_until(lambda: len(journal.lines("begin")) == 4, what="both jobs again")
    door.touch()
    [retried] = wait_until(lambda: payloads(redis, "retry"), what="the retry")
    assert "suspect" not in retried["forkq"]
    assert [crash["jobs"] for crash in retried["forkq"]["crashes"]] == [2]
    wait_settled(redis)
    assert forkq.stop() == 0


def test_suspects_keep_to_the_limit_of_their_queue(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Solo children fetch by the same rules."""
    config = "[limits]\ndefault = 2\n"
    forkq = tree(redis_server, app=APP, config=config, args=["-c", "6"], env=journal.env)
    door = journal.path.with_name("open")
    jids = push_many(redis_server, "Gate", [[str(door)]] * 2)
    journal.wait("begin", jids)
    jids += push_many(redis_server, "Nap", [[0.05]] * 20)
    workers(forkq)[0].kill()
    wait_until(lambda: len(_alone(forkq, journal)) == 2, what="both suspects alone")
    door.touch()
    wait_settled(redis)
    assert journal.jids("end") == set(jids)
    assert _most_at_once(journal) <= 2
    assert forkq.stop() == 0


def _most_at_once(journal: Journal) -> int:
    """The largest number of jobs that ran at the same time, killed ones left out."""
    last = {jid: lines[-1].at for jid, lines in journal.runs().items()}
    steps = [(at, 1) for at in last.values()]
    steps += [(line.at, -1) for line in journal.lines("end")]
    return max(itertools.accumulate(step for _, step in sorted(steps)))


@pytest.mark.parametrize("order", [signal.SIGTSTP, signal.SIGTERM], ids=["quiet", "stop"])
def test_suspects_wait_in_their_list_when_the_tree_fetches_no_more(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal, order: signal.Signals
) -> None:
    """Another host may have a solo child for them. They are suspects still, without another crash
    record."""
    config = f"[forkq]\nsolo_children = {MOST_SOLO}\n"
    options = ["-c", "6", "-t", "1"]
    forkq = tree(redis_server, app=APP, config=config, args=options, env=journal.env)
    door = journal.path.with_name("open")
    jids = push_many(redis_server, "Gate", [[str(door)]] * (MOST_SOLO + 2))
    journal.wait("begin", jids)
    workers(forkq)[0].kill()
    wait_until(lambda: len(_alone(forkq, journal)) == MOST_SOLO, what="solo children at work")
    forkq.signal(order)
    wait_until(lambda: len(waiting(redis)) >= 2, what="the two that wait")
    found: Any = redis.lrange("{queue:default}:suspects", 0, -1)
    for job in map(json.loads, found):
        assert job["forkq"]["suspect"] is True
        assert [crash["jobs"] for crash in job["forkq"]["crashes"]] == [len(jids)]
    door.touch()
    assert forkq.stop() == 0
    assert sorted([*waiting(redis), *journal.jids("end")]) == sorted(jids)
    assert leased(redis) == []
    forkq.start()
    journal.wait("end", jids)
    wait_settled(redis)
    assert redis.zcard("dead") == 0


def test_kills_of_holders_and_solo_children_lose_nothing(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """At any line of the hand-over: the lease is the holder's or the solo child's."""
    options = ["-w", "2", "-c", "5", "--log-level", "warning"]
    forkq = tree(redis_server, app=APP, args=options, env=journal.env)
    jids = push_many(redis_server, "Quick", [[random.uniform(0.01, 0.1)] for _ in range(400)])
    killed: set[int] = set()
    for turn in range(12):
        family = workers(forkq) if turn % 2 == 0 else [*solo_children(forkq), *workers(forkq)]
        victim = random.choice(family) if family else None
        if victim is not None:
            killed.add(victim.pid)
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        seen = len(journal.lines("begin"))
        with suppress(AssertionError):
            wait_until(
                lambda n=seen: len(journal.lines("begin")) > n or settled(redis),  # type: ignore[misc]
                deadline=5,
                what="a job, or the end of all",
            )
    wait_until(lambda: settled(redis), deadline=120, what="the end of all jobs")
    dead = {job["jid"] for job in payloads(redis, "dead")}  # killed alone three times, from outside
    assert journal.jids("end") | dead == set(jids)
    overlaps = [
        jid
        for jid, lines in journal.runs().items()
        if any(line.pid not in killed for line in lines[:-1])
    ]
    assert not overlaps, f"ran again without a kill: {overlaps[:5]}"
    assert forkq.stop() == 0


DEATHS = """
from pathlib import Path

@forkq.on_death
def note(job, error):
    with Path("deaths").open("a") as file:
        file.write(f"{job['jid']} {type(error).__name__}\\n")
"""


@pytest.mark.parametrize(
    ("options", "dies", "handled"),
    [
        ({}, True, True),
        ({"dead": False}, False, True),
        ({"on_crash": "discard"}, False, False),
        ({"crashes": 1}, True, True),
    ],
    ids=["default", "not kept", "discard", "one crash"],
)
def test_the_job_says_what_becomes_of_it(
    redis: Redis,
    redis_server: Server,
    tree: StartTree,
    journal: Journal,
    options: dict[str, Any],
    dies: bool,
    handled: bool,
) -> None:
    """Death handlers run in a child, for a job that is buried or dropped."""
    app = APP.read_text() + DEATHS
    forkq = tree(redis_server, app=app, args=["-c", "1"], env=journal.env)
    client = Client(redis_server.url)
    jid = client.push({"class": "Exit", "args": [1], **options})
    client.close()
    assert jid is not None
    wait_until(lambda: len(journal.lines("begin")) > options.get("crashes", BUDGET), what="runs")
    wait_settled(redis)
    assert [job["jid"] for job in payloads(redis, "dead")] == ([jid] if dies else [])
    deaths = forkq.cwd / "deaths"
    if handled:  # a handler runs when the job is settled
        wait_until(deaths.exists, what="the death handler")
        wait_until(lambda: deaths.read_text() == f"{jid} Crashed\n", what="its line")
    else:
        assert not deaths.exists()
    assert len(journal.lines("begin")) == 1 + options.get("crashes", BUDGET)
    assert forkq.stop() == 0


def test_a_job_may_ask_to_run_again_after_each_crash(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    forkq = tree(redis_server, app=APP, args=["-c", "1"], env=journal.env)
    client = Client(redis_server.url)
    client.push({"class": "Exit", "args": [1], "on_crash": "requeue"})
    client.close()
    wait_until(lambda: len(journal.lines("begin")) > BUDGET, deadline=60, what="many runs")
    wait_until(lambda: redis.zcard("schedule"), what="a pause")
    assert len(journal.lines("begin")) < 4 * BUDGET
    assert redis.zcard("dead") == 0
    assert forkq.stop() == 0


@pytest.mark.slow
def test_a_solo_child_that_a_web_ui_made_quiet_is_replaced(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Else suspects would wait for it for ever."""
    forkq = tree(redis_server, app=APP, args=["-c", "1"], env=journal.env)
    door = journal.path.with_name("open")
    first = push(redis_server, "Gate", str(door))
    journal.wait("begin", [first])
    workers(forkq)[0].kill()
    [pid] = wait_until(lambda: _alone(forkq, journal), what="a solo child at work")
    [identity] = wait_until(
        lambda: [
            name for name in map(_text, redis.smembers("processes")) if f":{pid}:solo" in name
        ],
        what="its record",
    )
    redis.lpush(f"{identity}-signals", "TSTP")
    wait_until(lambda: redis.hget(identity, "quiet") == b"true", deadline=40, what="its quiet")
    second = push(redis_server, "Exit", 1)
    door.touch()
    journal.wait("end", [first])
    wait_until(lambda: redis.zcard("dead"), deadline=30, what="the burial of the second")
    assert len(journal.runs()[second]) == 1 + BUDGET
    assert forkq.stop() == 0


def _text(name: Any) -> str:
    return str(name.decode())


def test_a_suspect_of_a_paused_queue_waits_for_the_end_of_the_pause(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """It costs one idle solo child, and no fork after the other."""
    forkq = tree(redis_server, app=APP, args=["-c", "4"], env=journal.env)
    door = journal.path.with_name("open")
    jids = push_many(redis_server, "Gate", [[str(door)]] * 3)
    journal.wait("begin", jids)
    redis.sadd("paused", "default")
    wait_swept(redis, forkq)
    workers(forkq)[0].kill()
    [solo] = wait_until(lambda: solo_children(forkq), what="a solo child")
    wait_until(lambda: sorted(suspects(redis)) == sorted(jids), what="the suspects")
    assert leased(redis) == []
    assert len(journal.lines("begin")) == len(jids)
    door.touch()
    redis.srem("paused", "default")
    wait_settled(redis)
    assert journal.jids("end") == set(jids)
    assert solo.pid in {lines[-1].pid for lines in journal.runs().values()}
    assert forkq.stop() == 0


def test_a_suspect_that_waits_has_no_permit_of_its_queue(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """The only solo child runs the suspect of another queue. An innocent job runs meanwhile."""
    config = "[forkq]\nsolo_children = 1\n[limits]\nbilling = 1\n"
    options = ["-c", "4", "-q", "reports", "-q", "billing"]
    forkq = tree(redis_server, app=APP, config=config, args=options, env=journal.env)
    door = journal.path.with_name("open")
    long = push_many(redis_server, "Gate", [[str(door)]], queue="reports")
    waits = push_many(redis_server, "Gate", [[str(door)]], queue="billing")
    journal.wait("begin", [*long, *waits])
    wait_swept(redis, forkq)
    workers(forkq)[0].kill()
    wait_until(lambda: leased(redis, "reports") == long and _alone(forkq, journal), what="the one")
    assert suspects(redis, "billing") == waits
    innocent = push_many(redis_server, "Quick", [[0.01]], queue="billing")
    journal.wait("end", innocent)
    assert suspects(redis, "billing") == waits
    door.touch()
    for queue in ("reports", "billing"):
        wait_until(lambda q=queue: settled(redis, q), what=f"the end of all in {queue}")  # type: ignore[misc]
    assert journal.jids("end") == {*long, *waits, *innocent}
    assert forkq.stop() == 0


def test_where_no_solo_child_can_boot_an_ordinary_child_runs_suspects_one_at_a_time(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """The app listens on a fixed port. A suspect runs with nothing beside it, and the innocents of
    its crash all end; one that kills this child alone is buried."""
    app, env = listening(journal)
    forkq = tree(redis_server, app=app, args=["-c", "4"], env=env)
    wait_swept(redis, forkq)
    good = push_many(redis_server, "Quick", [[0.05]] * 12)
    bad = push(redis_server, "Exit", 1)
    good += push_many(redis_server, "Quick", [[0.05]] * 12)
    wait_until(lambda: settled(redis) and redis.zcard("dead"), deadline=120, what="the end of all")
    assert_only_poison_died(redis, journal, good, [bad])
    assert "this child runs suspects, one at a time" in forkq.log_text()
    assert forkq.stop() == 0
