"""A suspect that was in progress when whole trees died runs as the only suspect of its tree."""

from __future__ import annotations

import itertools
import json
from typing import Any

from redis import Redis

from forkq.wire.times import now
from tests.process.shared import (
    APP,
    Journal,
    leased,
    payloads,
    push,
    solo_children,
    suspects,
    title,
    wait_settled,
    wait_swept,
)
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

CONFIG = """
[capsules.default]
queues = ["default"]
concurrency = 4
[capsules.other]
queues = ["reports"]
concurrency = 4
"""
QUEUES = ("default", "reports")
Job = tuple[str, str, list[Any], dict[str, Any]]


def isolate(redis: Redis, jobs: list[Job], *, whole_trees: bool) -> set[str]:
    """Each is queue, class, arguments and options; they come to the heads of the lists of suspects.
    ``whole_trees``: two of them died."""
    jids = set()
    crash = {"at": now(), "signal": 9, **({"tree": True} if whole_trees else {})}
    for number, (queue, name, args, options) in enumerate(jobs):
        jid = f"{'tree' if whole_trees else 'plain'}{number}{queue}"
        marks = {"suspect": True, "crashes": [crash] * (1 + whole_trees)}
        job = {"class": name, "args": args, "jid": jid, "queue": queue, "forkq": marks, **options}
        redis.sadd("queues", queue)
        redis.lpush(f"{{queue:{queue}}}:suspects", json.dumps(job))
        redis.sadd("forkq:suspects", queue)
        jids.add(jid)
    return jids


def overlaps(journal: Journal, alone: set[str], killed: set[str]) -> list[tuple[str, str]]:
    """The runs of ``alone`` that had a run of another job beside them."""
    ends = {(line.pid, line.jid): line.at for line in journal.lines("end")}
    runs = [
        (line.jid, line.at, ends.get((line.pid, line.jid), line.at))
        for line in journal.lines("begin")
        if line.jid not in killed or (line.pid, line.jid) in ends
    ]
    return [
        (one, other)
        for one, begin, end in runs
        for other, at, until in runs
        if one in alone and one != other and at < end and begin < until
    ]


def solo_names(tree: ForkqTree) -> set[str]:
    titles = [title(child).split() for child in solo_children(tree)]
    return {words[2] for words in titles if words}


def test_none_runs_beside_another_suspect_and_all_end(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """In two capsules, among suspects that have killed no tree, with a bad one in each group."""
    forkq = tree(redis_server, app=APP, config=CONFIG, env=journal.env)
    wait_swept(redis, forkq)
    quick: list[Job] = [(q, "Quick", [0.2], {}) for q in QUEUES for _ in range(6)]
    bad: list[Job] = [("default", "Exit", [1], {"crashes": 1})]
    both = isolate(redis, quick, whole_trees=False)
    both |= isolate(redis, [*quick, *bad], whole_trees=True)
    of_trees = {jid for jid in both if jid.startswith("tree")}
    dies = "tree12default"
    for queue in QUEUES:
        wait_until(
            lambda q=queue: not suspects(redis, q) and not leased(redis, q),  # type: ignore[misc]
            deadline=180,
            what=f"the end of all suspects of {queue}",
        )
    wait_until(lambda: redis.zcard("dead"), what="the burial")
    assert journal.jids("end") == both - {dies}
    assert len(journal.runs()[dies]) == 2, "twice as many crashes as it may cause"
    assert [job["jid"] for job in payloads(redis, "dead")] == [dies]
    assert overlaps(journal, of_trees, {dies}) == []
    wait_until(lambda: not solo_children(forkq), what="the end of the solo children")
    assert forkq.stop() == 0


def test_it_waits_for_a_suspect_that_runs_and_others_wait_for_it(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """What waits has no lease."""
    forkq = tree(redis_server, app=APP, config=CONFIG, env=journal.env)
    wait_swept(redis, forkq)
    first, second = (journal.path.with_name(name) for name in ("first", "second"))
    [plain] = isolate(redis, [("reports", "Gate", [str(first)], {})], whole_trees=False)
    journal.wait("begin", [plain])
    [of_tree] = isolate(redis, [("default", "Gate", [str(second)], {})], whole_trees=True)
    wait_until(lambda: "default.solo0" in solo_names(forkq), deadline=30, what="one that finds it")
    wait_until(lambda: solo_names(forkq) == {"other.solo0"}, deadline=30, what="its end")
    assert suspects(redis) == [of_tree]
    first.touch()
    journal.wait("begin", [of_tree])
    later = isolate(redis, [("reports", "Quick", [0.01], {})], whole_trees=False)
    assert suspects(redis, "reports") == [*later]
    second.touch()
    wait_settled(redis)
    journal.wait("end", [*later])
    assert forkq.stop() == 0
    assert overlaps(journal, {of_tree}, set()) == []


def test_after_two_deaths_of_the_tree_its_jobs_run_one_after_the_other(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """After the first one they run side by side, as before."""
    forkq = tree(redis_server, app=APP, config=CONFIG, env=journal.env)
    door = journal.path.with_name("open")
    jids = {push(redis_server, "Gate", str(door), queue=queue) for queue in (*QUEUES, *QUEUES)}
    for lives in (1, 2):
        wait_swept(redis, forkq)
        wait_until(
            lambda n=lives: [len(runs) for runs in journal.runs().values()] == [n] * 4,  # type: ignore[misc]
            deadline=60,
            what="all jobs",
        )
        for process in sorted(forkq.processes(), key=lambda found: found.pid != forkq.pid):
            process.kill()  # the master first: it rescues nothing
        forkq.wait()
        forkq.start()
    wait_until(lambda: len(journal.lines("begin")) == 9, deadline=60, what="the first one, alone")
    door.touch()
    wait_until(lambda: journal.jids("end") == jids, deadline=120, what="the end of all")
    killed = {line.pid for line in journal.lines("begin")[:8]}
    last = {jid: runs[-1] for jid, runs in journal.runs().items()}
    assert not killed & {line.pid for line in last.values()}
    ends = {line.jid: line.at for line in journal.lines("end")}
    in_order = sorted(last.values(), key=lambda line: line.at)
    assert all(a.at <= ends[a.jid] <= b.at for a, b in itertools.pairwise(in_order))
    assert redis.zcard("dead") == 0
    assert forkq.stop() == 0
