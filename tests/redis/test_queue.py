"""forkq.Queue: limits, rates and pauses set from any process, and what they write to Redis."""

from __future__ import annotations

import json
import re
import runpy
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import WatchError

import forkq
from forkq import api, default_client, registry
from forkq.api.queues import QueueState
from forkq.errors import InvalidRule, ServerUnavailable
from tests.support.server import Server
from tests.support.waiting import wait_until

DOCS = Path(__file__).parents[2] / "docs" / "limits.md"
CONTROL = "{queue:webhooks}:control"
CONFIG = """
[limits]
webhooks = 4
"tenant-*" = 2
[process_limits]
webhooks = 3
[rates]
webhooks = { rate = "100/minute", burst = 10 }
[blocking]
webhooks = true
"""


@pytest.fixture(autouse=True)
def client(
    redis: Redis, redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[forkq.Client]:
    """The process's client, on an empty server, in a folder with a forkq.toml."""
    (tmp_path / "forkq.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(default_client, "_default", None)
    client = forkq.configure(redis_server.url, environ={})
    yield client
    client.close()


@pytest.fixture
def queue() -> forkq.Queue:
    return forkq.Queue("webhooks")


def rules(queue: forkq.Queue) -> tuple[object, ...]:
    return queue.limit, queue.process_limit, queue.rate, queue.burst


CONFIGURED = (4, 3, "100/minute", 10)


def test_the_rules_of_the_configuration_are_in_force(queue: forkq.Queue) -> None:
    assert rules(queue) == CONFIGURED
    assert rules(forkq.Queue("tenant-a")) == (2, None, None, None)
    assert rules(forkq.Queue("mail")) == (None, None, None, None)


def test_a_change_wins_over_the_configuration_and_none_lifts_it(
    queue: forkq.Queue, redis: Redis
) -> None:
    queue.limit, queue.process_limit, queue.rate = 0, 1, "10/30s"
    assert rules(queue) == (0, 1, "10/30s", None)
    assert redis.hgetall(CONTROL) == {b"limit": b"0", b"process_limit": b"1", b"rate": b"10/30"}
    queue.limit = queue.process_limit = queue.rate = None
    assert rules(queue) == (None, None, None, None)
    assert set(redis.hvals(CONTROL)) == {b"none"}


def test_reset_goes_back_to_the_configuration_and_leaves_nothing(
    queue: forkq.Queue, redis: Redis
) -> None:
    queue.limit = 7
    queue.set_rate("5/second", burst=50)
    assert rules(queue) == (7, 3, "5/second", 50)
    queue.reset()
    assert rules(queue) == CONFIGURED
    assert redis.exists(CONTROL, "forkq:controlled") == 0


def test_a_new_rate_forgets_the_old_burst(queue: forkq.Queue) -> None:
    queue.set_rate("5/second", burst=50)
    queue.rate = "6/second"
    assert (queue.rate, queue.burst) == ("6/second", None)


def test_every_change_wakes_the_children_that_wait(queue: forkq.Queue, redis: Redis) -> None:
    """A child that waits watches forkq:controlled (decision 010). Setting, lifting and resetting a
    rule change that key in the same step."""
    changes: list[Callable[[], None]] = [
        lambda: setattr(queue, "limit", 1),
        lambda: setattr(queue, "limit", 1),  # the same once more
        lambda: setattr(queue, "process_limit", None),
        lambda: setattr(queue, "rate", "1/s"),
        queue.reset,
    ]
    for change in changes:
        with redis.pipeline() as watcher:
            watcher.watch("forkq:controlled")  # type: ignore[no-untyped-call]
            change()
            watcher.multi()
            watcher.echo("unchanged")
            with pytest.raises(WatchError):
                watcher.execute()


def test_each_queue_has_its_own_changed_rules(queue: forkq.Queue, redis: Redis) -> None:
    forkq.Queue("mail").limit = 1
    queue.limit = 2
    queue.limit = 3
    assert redis.hgetall("forkq:controlled") == {b"mail": b"1", b"webhooks": b"2"}
    queue.reset()
    assert redis.hgetall("forkq:controlled") == {b"mail": b"1"}
    assert forkq.Queue("mail").limit == 1


@pytest.mark.parametrize("count", [-1, 2.5, "2", True, 1_000_001])
def test_an_invalid_limit_is_refused(queue: forkq.Queue, count: object) -> None:
    for rule in ("limit", "process_limit"):
        with pytest.raises(InvalidRule, match="expected a whole number from 0"):
            setattr(queue, rule, count)
    assert rules(queue) == CONFIGURED


@pytest.mark.parametrize("rate", ["", "fast", "0/minute", "5/week", "1.5/s"])
def test_an_invalid_rate_is_refused(queue: forkq.Queue, rate: str) -> None:
    with pytest.raises(InvalidRule, match="expected a rate like"):
        queue.rate = rate
    assert rules(queue) == CONFIGURED


def test_a_burst_is_a_whole_number_from_1(queue: forkq.Queue) -> None:
    with pytest.raises(InvalidRule, match="whole number from 1 for the burst"):
        queue.set_rate("1/s", burst=0)


@pytest.mark.parametrize("name", ["tenant-*", "a?[b]", "mail,5"])
def test_a_queue_that_redis_has_may_have_any_name(
    redis: Redis, queue: forkq.Queue, name: str
) -> None:
    """Sidekiq pushes to each, and one such job must not hide those of all other queues."""
    redis.sadd("queues", name)
    redis.lpush(f"queue:{name}", json.dumps({"class": "J", "args": [], "jid": "a", "queue": name}))
    strange = forkq.Queue(name)
    assert [entry.jid for entry in strange] == ["a"]
    assert strange.clear() == 1


def test_a_pattern_or_an_empty_name_is_no_queue() -> None:
    """At run time there are no rules for patterns, so a pattern raises an error."""
    with pytest.raises(InvalidRule, match="is a pattern, and at run time"):
        forkq.Queue("tenant-*")
    for nothing in ("", "mail,5", None, 5):
        with pytest.raises(InvalidRule, match="is not a queue: expected a name of"):
            forkq.Queue(nothing)  # type: ignore[arg-type]


def test_a_pause_is_that_of_sidekiq_pro_and_no_limit(queue: forkq.Queue, redis: Redis) -> None:
    assert not queue.paused
    assert (queue.pause(), queue.pause()) == (True, False)
    assert redis.smembers("paused") == {b"webhooks"}
    queue.limit = 0
    assert (queue.resume(), queue.resume()) == (True, False)
    assert (queue.paused, queue.limit) == (False, 0)
    redis.sadd("paused", "webhooks")
    queue.reset()
    assert queue.paused


def test_size_busy_and_latency(queue: forkq.Queue, redis: Redis) -> None:
    assert (queue.size, queue.busy, queue.latency) == (0, 0, 0.0)
    old = json.dumps({"class": "A", "args": [], "enqueued_at": time.time() - 60})
    redis.lpush("queue:webhooks", old, "{}")
    redis.lpop("queue:webhooks")
    redis.hset("{queue:webhooks}:inflight", "who/1", "{}")
    assert (queue.size, queue.busy) == (1, 1)
    assert 60 <= queue.latency < 90


def test_fields_that_another_program_wrote_wrongly_change_nothing(
    queue: forkq.Queue, redis: Redis
) -> None:
    """They do not break api.queues() either."""
    for value in ("", "many", "-1", "1.2.3/4", "5", b"\xff"):
        redis.hset(CONTROL, mapping=dict.fromkeys(("limit", "process_limit", "rate"), value))
        assert rules(queue)[2] == "100/minute"
    redis.hset(CONTROL, mapping={"limit": "many", "process_limit": "-1", "burst": "x"})
    redis.set("{queue:webhooks}:bucket", "nonsense")
    assert rules(queue) == CONFIGURED
    redis.hset(CONTROL, "rate", "5/0")
    [state] = api.queues("webhooks")
    assert state.tokens == 0


def test_api_queues_lists_all_queues(queue: forkq.Queue, redis: Redis) -> None:
    """Queues with jobs, with rules, with changed rules, and paused ones; each with its changes."""
    redis.sadd("queues", "mail", "tenant-a", b"\xff")
    redis.rpush("queue:mail", "{}", "{}")
    redis.hset("{queue:mail}:inflight", "who/1", "{}")
    forkq.Queue("idle").limit = None
    forkq.Queue("shut").pause()
    queue.rate = "1/hour"
    states = {state.name: state for state in api.queues()}
    assert list(states) == ["idle", "mail", "shut", "tenant-a", "webhooks"]
    assert states["mail"] == QueueState(
        "mail", busy=1, size=2, paused=False, limit=None, process_limit=None, rate=None,
        burst=None, tokens=None, blocking=False, changed=(),
    )  # fmt: skip
    assert states["webhooks"] == QueueState(
        "webhooks", busy=0, size=0, paused=False, limit=4, process_limit=3, rate="1/hour",
        burst=None, tokens=states["webhooks"].tokens, blocking=True, changed=("rate",),
    )  # fmt: skip
    assert states["webhooks"].tokens == pytest.approx(1, abs=0.001)
    assert (states["idle"].limit, states["idle"].changed) == (None, ("limit",))
    assert (states["tenant-a"].limit, states["tenant-a"].changed) == (2, ())
    assert [name for name, state in states.items() if state.paused] == ["shut"]


def test_tokens_are_counted_as_in_the_fetch(queue: forkq.Queue, redis: Redis) -> None:
    """The tokens left, plus what the rate has given since, up to the burst."""
    queue.set_rate("60/minute", burst=5)
    seconds, micros = redis.time()
    redis.set("{queue:webhooks}:bucket", f"0.5 {(seconds - 2) * 1_000_000 + micros}")
    [state] = api.queues("webhooks")
    assert state.tokens is not None
    assert 2.5 <= state.tokens < 4
    redis.set("{queue:webhooks}:bucket", "0.5 1")
    assert api.queues("webhooks")[0].tokens == 5


def test_rules_can_be_changed_on_a_full_server(own_server: Server) -> None:
    """A user limits and pauses queues just when Redis is full."""
    forkq.configure(own_server.url, environ={})
    full = own_server.client()
    full.config_set("maxmemory", "1")
    with pytest.raises(Exception, match=r"OOM|used memory"):
        full.set("a", "b")
    queue = forkq.Queue("webhooks")
    queue.limit = 1
    queue.rate = "1/s"
    assert queue.pause()
    assert (queue.limit, queue.rate, queue.paused) == (1, "1/second", True)
    assert queue.resume()
    queue.reset()
    assert queue.limit == 4
    full.close()


def test_an_unreachable_server_raises_server_unavailable() -> None:
    forkq.configure("redis://localhost:1/0", environ={})
    queue = forkq.Queue("webhooks")
    for attempt in (lambda: queue.limit, lambda: setattr(queue, "limit", 2), queue.pause,
                    queue.resume, queue.reset, api.queues):  # fmt: skip
        with pytest.raises(ServerUnavailable, match="localhost:1"):
            attempt()


def test_a_process_without_forkq_toml_knows_changed_rules_only(
    redis_server: Server,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    monkeypatch.setattr(registry, "modules", tuple)  # those of other tests' jobs have one
    forkq.configure(redis_server.url, environ={})
    queue = forkq.Queue("webhooks")
    assert queue.limit is None
    queue.limit = 2
    wait_until(lambda: queue.limit == 2, what="the change")


@pytest.mark.parametrize("text", re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL))
def test_the_python_of_limits_md_runs(text: str, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(text)
    found = runpy.run_path(str(tmp_path / "example.py"))
    assert not forkq.Queue("crm").paused
    assert found["forkq"].Queue("crm").limit is None
