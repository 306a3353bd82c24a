"""One queue over three servers: where its jobs go, and that the API has it as one queue."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from forkq import api, middleware, sharded_client
from forkq.client import Client
from forkq.errors import ConfigError, InvalidRule, ServerFull, ServerUnavailable
from forkq.testing import fake
from forkq.wire.spread import part_of
from tests.redis.shell import Shell
from tests.support.spread import JOB, PARTS, QUEUE, Spread, jids_for, three_parts


@pytest.fixture
def spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spread]:
    monkeypatch.chdir(tmp_path)
    with three_parts(tmp_path) as made:
        yield made


def jids(payloads: list[bytes]) -> set[str]:
    return {json.loads(payload)["jid"] for payload in payloads}


def where(spread: Spread) -> dict[str, str]:
    """The part of each job that waits."""
    return {jid: part for part in PARTS for jid in jids(spread.payloads(part))}


def parts(queue: api.Queue) -> list[api.Queue]:
    return [*queue._parts]


# Pushing


def test_the_jid_chooses_the_part(spread: Spread) -> None:
    """Of single pushes, of bulk pushes, and of scheduled jobs: these are due in their part."""
    one = [spread.push(number) for number in range(30)]
    many = spread.client.push_bulk({**JOB, "args": [[number] for number in range(2_500)]})
    found = where(spread)
    assert found == {jid: part_of(PARTS, jid) for jid in (*one, *many)}
    later = [spread.push(at=4_000_000_000) for _ in range(30)]
    for part in PARTS:
        scheduled = api.ScheduledSet(api.server(part))
        assert {job.jid for job in scheduled} == {j for j in later if part_of(PARTS, j) == part}


def test_other_queues_are_on_one_shard(spread: Spread) -> None:
    spread.client.push_bulk({"class": "J", "queue": "other", "args": [[]] * 20})
    spread.client.push_bulk({"class": "J", "queue": "b-1", "args": [[]] * 20})
    assert len(spread.payloads("default", "queue:other")) == 20
    assert len(spread.payloads("b", "queue:b-1")) == 20


def test_a_bulk_push_may_have_jobs_of_several_queues(spread: Spread) -> None:
    def route(payload: dict[str, Any], call: Any) -> Any:
        payload["queue"] = QUEUE if payload["args"][0] % 2 else "other"
        return call()

    middleware.client.append(route)
    try:
        spread.client.push_bulk({**JOB, "args": [[number] for number in range(40)]})
    finally:
        middleware.client.remove(route)
    assert sum(spread.sizes().values()) == len(spread.payloads("default", "queue:other")) == 20


def test_a_part_that_is_down_is_left_out_and_told_once(
    spread: Spread, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jobs go to the others, in equal shares; those of the others go where they always do."""
    caplog.set_level(logging.WARNING, "forkq")
    monkeypatch.setattr(sharded_client, "_FIRST_REST", 3600.0)
    spread.servers["b"].kill()
    single = [spread.push(number) for number in range(60)]
    bulk = spread.client.push_bulk({**JOB, "args": [[number] for number in range(600)]})
    found = {jid: part for part in ("c", "default") for jid in jids(spread.payloads(part))}
    assert set(found) == {*single, *bulk}
    for jid, part in found.items():
        assert part_of(PARTS, jid) in (part, "b")
    moved = [part for jid, part in found.items() if part_of(PARTS, jid) == "b"]
    assert min(moved.count("c"), moved.count("default")) > len(moved) / 4
    [line] = [one.getMessage() for one in caplog.records]
    assert line.startswith("the shard b is down, and its jobs of imports go to the other parts: ")
    assert line.endswith("Connection refused.")


def test_a_part_that_is_back_gets_its_jobs_again(
    spread: Spread, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One push in each rest tries it."""
    now = 1000.0
    monkeypatch.setattr(sharded_client, "monotonic", lambda: now)
    caplog.set_level(logging.WARNING, "forkq")
    spread.servers["b"].kill()
    spread.push_to("b", 3)
    spread.servers["b"].start()
    first, second = jids_for("b", 2, "again")
    spread.push(jid=first)
    assert first not in where(spread) or where(spread)[first] != "b", "its rest is not over"
    now += 1.0
    spread.push(jid=second)
    assert where(spread)[second] == "b"
    assert [one.getMessage() for one in caplog.records][1:] == ["the shard b takes jobs again"]


def tell_of_pushes(
    spread: Spread,
    part: str,
    monkeypatch: pytest.MonkeyPatch,
    tell: Callable[[Sequence[Any]], object],
) -> None:
    """From now on ``tell`` gets the jobs of each push that is tried at that part."""
    push = Client._write

    def write(client: Any, jobs: Any, route: Any = None) -> Any:
        if route is spread.client._routes[part]:
            tell(jobs)
        return push(client, jobs, route)

    monkeypatch.setattr(Client, "_write", write)


def test_only_one_push_in_each_rest_tries_a_part_that_is_down(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the rests grow, to half a minute."""
    now, tried = 1000.0, list[float]()
    monkeypatch.setattr(sharded_client, "monotonic", lambda: now)
    tell_of_pushes(spread, "b", monkeypatch, lambda _: tried.append(now))
    spread.servers["b"].kill()
    for number, jid in enumerate(jids_for("b", 240)):
        now = 1000.0 + number / 2
        spread.push(jid=jid)
    pauses = [round(after - before) for before, after in pairwise(tried)]
    assert pauses == [1, 2, 4, 8, 16, 30, 30]


def test_a_bulk_push_tries_a_part_that_is_down_with_one_job(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, tried = 1000.0, list[int]()
    monkeypatch.setattr(sharded_client, "monotonic", lambda: now)
    tell_of_pushes(spread, "b", monkeypatch, lambda jobs: tried.append(len(jobs)))
    spread.servers["b"].kill()
    spread.push_to("b")
    now += 60
    spread.client.push_bulk({**JOB, "args": [[]] * 300})
    assert tried == [1, 1]
    assert sum(len(spread.payloads(part)) for part in ("c", "default")) == 301


def test_if_all_parts_are_down_the_push_says_so_of_each(spread: Spread) -> None:
    for server in spread.servers.values():
        server.kill()
    for _ in range(2):
        with pytest.raises(
            ServerUnavailable, match=r"shard (b|c|default): .*shard .*shard "
        ) as one:
            spread.push()
        assert (one.value.pushed, one.value.unknown) == ((), ())
    spread.servers["c"].start()
    assert where_of(spread.push()) == "c"


def where_of(jid: str) -> str:
    found = api.entry(jid)
    assert found is not None
    return found.server.name


def test_a_job_that_may_have_arrived_goes_nowhere_else(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server takes a push and does not answer: a second one would be a second job."""
    for route in spread.client._routes.values():
        monkeypatch.setattr(route, "_access", route._access._replace(timeout=0.2))
    first, jid, other = jids_for("b", 3)
    spread.push(jid=first)  # opens a connection
    spread.servers["b"].pause()
    with pytest.raises(ServerUnavailable) as raised:
        spread.push(jid=jid)
    assert raised.value.unknown == (jid,)
    spread.push(jid=other)  # it goes elsewhere at once
    spread.servers["b"].resume()
    assert where(spread)[other] in ("c", "default")
    assert [part for part in PARTS if jid in jids(spread.payloads(part))] in ([], ["b"])


def test_a_part_that_refuses_jobs_is_not_down(spread: Spread) -> None:
    """Its answer says what a person has to do, and the others could be full next."""
    with spread.servers["b"].client() as redis:
        redis.config_set("maxmemory", "1")
    [jid] = jids_for("b", 1)
    with pytest.raises(ServerFull, match=r"shard b: .*maxmemory"):
        spread.push(jid=jid)
    assert where(spread) == {}
    spread.push_to("c")


def test_of_a_bulk_push_what_a_server_has_refused_is_told(spread: Spread) -> None:
    with spread.servers["b"].client() as redis:
        redis.config_set("maxmemory", "1")
    with pytest.raises(ServerFull, match="over all shards") as raised:
        spread.client.push_bulk({**JOB, "args": [[number] for number in range(300)]})
    assert set(raised.value.pushed) == set(where(spread))
    assert {part_of(PARTS, jid) for jid in raised.value.pushed} == {"c", "default"}


def test_a_duplicate_is_not_among_what_a_failed_push_has_pushed(spread: Spread) -> None:
    job = {**JOB, "unique_for": 600}
    earlier = spread.client.push_bulk({**job, "args": [[number] for number in range(30)]})
    with spread.servers["b"].client() as redis:
        redis.config_set("maxmemory", "1")
    with pytest.raises(ServerFull) as raised:
        spread.client.push_bulk({**job, "args": [[number] for number in range(90)]})
    assert set(raised.value.pushed) == set(where(spread)) - set(earlier)


def test_a_push_that_waits_for_a_commit_goes_to_its_part(spread: Spread) -> None:
    waiting: list[Any] = []
    jid = spread.client.push_later({**JOB, "args": []}, waiting.append)
    assert where(spread) == {}
    for send in waiting:
        send()
    assert jid is not None
    assert where(spread) == {jid: part_of(PARTS, jid)}


def test_recorded_pushes_have_one_queue(spread: Spread) -> None:
    with fake() as jobs:
        spread.client.push_bulk({**JOB, "args": [[number] for number in range(20)]})
        assert len(jobs) == 20
    assert where(spread) == {}


# The API: one queue


def test_a_queue_counts_its_parts_together(spread: Spread) -> None:
    for number, part in enumerate(PARTS, 1):
        spread.push_to(part, number)
    queue = api.Queue(QUEUE)
    assert queue.size == 6
    assert [(part.server.name, part.size) for part in parts(queue)] == [
        *zip(PARTS, (1, 2, 3), strict=True)
    ]
    assert [part.size for part in parts(api.Queue("other"))] == [0]
    assert len(list(queue)) == 6
    assert api.shards_of(QUEUE) == [*PARTS]
    with spread.servers["c"].client() as redis:
        [payload] = spread.payloads("b")
        old = {**json.loads(payload), "enqueued_at": 1.0, "jid": "old"}
        redis.rpush(f"queue:{QUEUE}", json.dumps(old))
    assert queue.latency > 1e6
    with pytest.raises(ConfigError, match="is spread over the shards b, c, default"):
        _ = queue.server
    one = api.Queue(QUEUE, api.server("b"))
    assert (one.size, one.server.name, parts(one)) == (1, "b", [one])


@pytest.mark.parametrize("newest_first", [False, True])
def test_pages_go_on_from_one_part_to_the_next(spread: Spread, newest_first: bool) -> None:
    for number, part in enumerate(PARTS, 3):
        spread.push_to(part, number)
    queue = api.Queue(QUEUE)
    every = [job.jid for job in queue.scan(newest_first=newest_first)]
    assert len(set(every)) == 12
    for count in (1, 2, 5, 12, 20):
        pages = [queue.page(at, count, newest_first=newest_first) for at in range(0, 12, count)]
        assert [job.jid for page in pages for job in page] == every
    assert queue.page(12, 5) == []


def test_a_pause_and_its_end_are_of_all_parts(spread: Spread) -> None:
    queue = api.Queue(QUEUE)
    assert [queue.pause("ann"), queue.pause("bob"), queue.paused] == [True, False, True]
    assert all(part.paused for part in parts(queue))
    assert queue.report().state.paused_by == "ann"
    assert parts(queue)[0].resume()
    assert [queue.paused, queue.resume()] == [False, True], "one part was served"
    assert not any(part.paused for part in parts(queue))


def test_a_part_that_is_down_keeps_no_other_one_from_a_pause(spread: Spread) -> None:
    spread.servers["b"].kill()
    queue = api.Queue(QUEUE)
    with pytest.raises(ServerUnavailable, match=r"^shard b: .* the other parts have done it"):
        queue.pause()
    assert [api.Queue(QUEUE, api.server(part)).paused for part in ("c", "default")] == [True, True]
    with pytest.raises(ServerUnavailable, match="shard b: "):
        _ = queue.size  # a sum without it would be a wrong one


def test_a_job_is_found_and_deleted_in_its_part(spread: Spread) -> None:
    jid = spread.push_to("c")[0]
    found = api.Queue(QUEUE).find(jid)
    assert found is not None
    assert found.server.name == "c"
    assert api.find(jid) is not None
    assert api.Queue(QUEUE).delete(jid)
    assert not api.Queue(QUEUE).delete(jid)


def test_all_jobs_are_cleared(spread: Spread) -> None:
    spread.client.push_bulk({**JOB, "args": [[]] * 50})
    assert api.Queue(QUEUE).clear() == 50
    assert sum(spread.sizes().values()) == 0


def test_what_is_deleted_from_all_parts_is_put_back_into_each(spread: Spread) -> None:
    spread.client.push_bulk({**JOB, "args": [[]] * 50})
    before, seen = where(spread), list[tuple[int, int]]()
    outcome = api.Queue(QUEUE).delete_all(
        undo=True, progress=lambda so_far: seen.append((so_far.total, so_far.done))
    )
    assert (outcome.total, outcome.done) == (50, 50)
    assert seen[-1] == (50, 50)
    assert where(spread) == {}
    assert api.undo(outcome.undo).done == 50
    assert where(spread) == before


def test_an_action_has_one_bound_for_all_parts(spread: Spread) -> None:
    spread.client.push_bulk({**JOB, "args": [[]] * 50})
    queue = api.Queue(QUEUE)
    assert queue.delete_all(dry_run=True).matched == 50
    assert queue.kill_all(most=20).done == 20
    assert queue.size == 30
    left = spread.sizes()
    spread.servers["default"].kill()
    with pytest.raises(ServerUnavailable) as raised:
        queue.delete_all()
    assert raised.value.outcome.done == left["b"] + left["c"]


def test_a_rule_that_no_server_could_keep_is_refused_at_run_time(spread: Spread) -> None:
    for queue in (api.Queue(QUEUE), api.Queue(QUEUE, api.server("b"))):
        with pytest.raises(InvalidRule, match="each counts its own jobs only, so `limits` cannot"):
            queue.limit = 3
        with pytest.raises(InvalidRule, match="so `rates` cannot hold for all"):
            queue.set_rate("5/second")
    queue = api.Queue(QUEUE)
    queue.limit = None
    queue.process_limit = 2
    assert [part.process_limit for part in parts(queue)] == [2, 2, 2]
    queue.reset()
    assert [part.process_limit for part in parts(queue)] == [None] * 3
    api.Queue("other").limit = 3


def test_a_periodic_job_is_always_in_one_part(spread: Spread) -> None:
    names = [secrets.token_hex(4) for _ in range(12)]
    for name in names:
        api.cron.add(name, "* * * * *", "J", queue=QUEUE)
    found = {one.name: part for part in PARTS for one in api.cron.list(api.server(part))}
    assert found == {name: part_of(PARTS, name) for name in names}


def test_a_job_moves_to_a_spread_queue_of_its_shard_only(spread: Spread) -> None:
    """To the part that is there."""
    spread.client.push({"class": "J", "queue": "b-1", "args": []})
    assert api.Queue("b-1").move_all(QUEUE).done == 1
    assert spread.sizes() == {"b": 1, "c": 0, "default": 0}


# Commands


def test_commands_have_it_as_one_queue(spread: Spread, shell: Shell) -> None:
    for number, part in enumerate(PARTS, 1):
        spread.push_to(part, number)
    assert shell("queues show imports") == 0
    assert ["size", "6"] in [line.split() for line in shell.out.splitlines()]
    assert "default: size 3, busy 0, latency" in shell.out
    assert shell("pause imports other") == 0
    assert "imports is paused; busy 0, size 6" in shell.out
    assert shell("resume imports") == 0
    assert shell("limits set imports 3") == 2
    assert "take it out of [spread], or lift the rule" in shell.err
    assert shell("queues list") == 0
    assert "imports: 6 jobs in 3 parts: b 1, c 2, default 3" in shell.out
    assert shell("shards list --seconds 0.1") == 0
    assert "imports: 6 jobs in 3 parts: b 1, c 2, default 3" in shell.out
    assert shell("jobs list --queue imports --json") == 0
    assert len(shell.out.splitlines()) == 6
    assert shell("jobs delete --queue imports --limit 2 --yes") == 0
    assert api.Queue(QUEUE).size == 4
    assert shell("queues clear imports --yes") == 0
    assert api.Queue(QUEUE).size == 0


def test_a_command_for_one_shard_is_about_its_part(spread: Spread, shell: Shell) -> None:
    for part in PARTS:
        spread.push_to(part, 2)
    assert shell("queues clear imports --shard b --yes") == 0
    assert spread.sizes() == {"b": 0, "c": 2, "default": 2}


def test_a_list_names_the_part_that_is_down(spread: Spread, shell: Shell) -> None:
    spread.push_to("c", 2)
    spread.servers["b"].kill()
    assert shell("queues list") == 6
    assert "imports: 2 jobs in 3 parts: b does not answer, c 2, default 0" in shell.out


def test_a_move_drains_what_is_no_part_into_one(
    spread: Spread, shell: Shell, tmp_path: Path
) -> None:
    """After a spread over fewer shards, nothing waits where no process may look for it."""
    for part in PARTS:
        spread.push_to(part, 5)
    file = tmp_path / "forkq.toml"
    file.write_text(file.read_text().replace("imports = 3", 'imports = ["b", "default"]'))
    assert shell("shards list --seconds 0.1") == 0
    assert "c still has 5 jobs of imports: forkq shards move imports b" in shell.out
    assert shell("shards move imports c") == 2
    assert "spread over b, default, and not on c: name one of these" in shell.err
    assert shell("shards move imports b") == 0
    assert "imports moved from c to b: 5 waiting" in shell.out
    assert spread.sizes() == {"b": 10, "c": 0, "default": 5}
    assert shell("shards move imports b") == 0, "parts do not move"
    assert spread.sizes() == {"b": 10, "c": 0, "default": 5}


def found_by_doctor(shell: Shell) -> dict[str, dict[str, Any]]:
    shell("doctor --json")
    return {one["check"]: one for one in map(json.loads, shell.out.splitlines())}


def test_the_doctor_tells_of_parts_strays_and_rules_of_one_part(
    spread: Spread, shell: Shell
) -> None:
    spread.push_to("b", 2)
    found = found_by_doctor(shell)
    assert {
        found[f"{check}@{part}"]["level"] for check in ("spread", "strays") for part in PARTS
    } == {"ok"}
    assert (
        found["spread@b"]["what"] == "parts of imports: order holds within this part, not over all"
    )
    with spread.servers["c"].client() as redis:
        redis.hset(f"{{queue:{QUEUE}}}:control", "limit", "3")  # from before it was spread
        redis.sadd("queues", "b-1")
        redis.rpush("queue:b-1", json.dumps({"class": "J", "args": [], "jid": "a", "queue": "b-1"}))
    spread.servers["b"].kill()
    found = found_by_doctor(shell)
    assert found["spread@c"]["level"] == "warn"
    assert found["spread@c"]["remedy"] == "forkq limits reset imports"
    assert found["strays@c"]["what"].endswith("on another shard: b-1 (jobs: 1)")
    assert found["strays@c"]["remedy"] == "forkq shards move b-1 b"
    why = "no job of its queues runs; new jobs of imports go to the other parts"
    assert (found["redis@b"]["level"], found["redis@b"]["why"]) == ("fail", why)
