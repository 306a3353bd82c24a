"""Publishing periodic jobs: what an app says is what stands in Redis; others' are left alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from forkq import registry
from forkq.child.publisher import Publisher
from forkq.connection import Wire
from forkq.cron import Entry
from forkq.keys import Keys
from tests.redis.crew import Log
from tests.support.server import Server

DAY = 86_400


@pytest.fixture
def wire(redis: Redis, redis_server: Server) -> Iterator[Wire]:
    wire = Wire(redis_server.url)
    wire.connect()
    yield wire
    wire.close()


def entry(name: str = "report", cron: str = "* * * * *", **more: Any) -> Entry:
    fields = {"origin": "code:app", "job": {"class": "Report", "args": []}, **more}
    return Entry.make(name=name, cron=cron, **fields)


def publish(wire: Wire, *entries: Entry, origins: tuple[str, ...] = ("code:app",)) -> Log:
    log = Log()
    by_origin: dict[str, list[Entry]] = {origin: [] for origin in origins}
    for one in entries:
        by_origin[one.origin].append(one)
    Publisher(Keys(), by_origin, log).publish(wire)
    return log


def standing(redis: Redis) -> dict[str, Entry]:
    found: Any = redis.hgetall("forkq:cron")
    return {name.decode(): Entry.decode(raw) for name, raw in found.items()}


def last(redis: Redis, name: str = "report") -> int | None:
    found: Any = redis.hget("forkq:cron:last", name)
    return None if found is None else int(found)


def test_a_new_entry_stands_and_begins_now(wire: Wire, redis: Redis) -> None:
    before = int(time.time())
    log = publish(wire, entry())
    assert standing(redis) == {"report": entry()}
    assert before <= (last(redis) or 0) <= time.time()
    assert log.lines == [("info", "periodic jobs added", {"names": ["report"]})]


def test_publishing_the_same_again_writes_nothing_and_says_nothing(
    wire: Wire, redis: Redis
) -> None:
    publish(wire, entry())
    redis.hset("forkq:cron:last", "report", "5")
    watcher = Wire(wire.url)
    watcher.connect()
    watcher.track()
    watcher.pipeline([("CLIENT", "CACHING", "YES"), ("HGETALL", "forkq:cron")])
    log = publish(wire, entry())
    assert log.lines == []
    assert last(redis) == 5
    assert watcher.wait(0.2) is False
    publish(wire, entry(cron="*/2 * * * *"))  # and the watcher would have noticed
    assert watcher.wait(5) is True
    watcher.close()


@pytest.mark.parametrize("change", [{"cron": "*/2 * * * *"}, {"tz": "Europe/Berlin"}])
def test_a_changed_schedule_begins_now(wire: Wire, redis: Redis, change: dict[str, str]) -> None:
    publish(wire, entry())
    redis.hset("forkq:cron:last", "report", "5")
    log = publish(wire, entry(**change))
    assert standing(redis) == {"report": entry(**change)}
    assert (last(redis) or 0) > 5
    assert log.events() == ["periodic jobs changed"]


def test_an_entry_that_is_enabled_again_begins_now(wire: Wire, redis: Redis) -> None:
    publish(wire, entry(enabled=False))
    redis.hset("forkq:cron:last", "report", "5")
    publish(wire, entry(enabled=True))
    assert (last(redis) or 0) > 5


@pytest.mark.parametrize(
    "change", [{"missed": 7}, {"jitter": 3.0}, {"overlap": "skip"}, {"enabled": False}]
)
def test_any_other_change_leaves_the_last_tick(
    wire: Wire, redis: Redis, change: dict[str, Any]
) -> None:
    publish(wire, entry())
    redis.hset("forkq:cron:last", "report", "5")
    publish(wire, entry(**change))
    assert standing(redis) == {"report": entry(**change)}
    assert last(redis) == 5


def test_a_last_tick_never_goes_back(wire: Wire, redis: Redis) -> None:
    """Another host's clock may be a little ahead: its tick must not come twice."""
    publish(wire, entry())
    ahead = int(time.time()) + 30
    redis.hset("forkq:cron:last", "report", ahead)
    publish(wire, entry(cron="*/2 * * * *"))
    assert last(redis) == ahead


def test_a_last_tick_of_a_clock_that_was_wrong_does(wire: Wire, redis: Redis) -> None:
    publish(wire, entry())
    redis.hset("forkq:cron:last", "report", int(time.time()) + 2 * DAY)
    publish(wire, entry(cron="*/2 * * * *"))
    assert (last(redis) or 0) <= time.time()


def test_what_the_app_no_longer_says_goes_with_all_its_notes(wire: Wire, redis: Redis) -> None:
    publish(wire, entry(), entry("other"))
    redis.hset("forkq:cron:pending", "other", "abc")
    log = publish(wire, entry())
    assert list(standing(redis)) == ["report"]
    assert redis.hkeys("forkq:cron:last") == [b"report"]
    assert not redis.exists("forkq:cron:pending")
    assert log.lines == [("info", "periodic jobs removed", {"names": ["other"]})]
    publish(wire)
    assert standing(redis) == {}


def test_two_apps_leave_each_other_alone(wire: Wire, redis: Redis) -> None:
    mail = entry("mail", origin="code:mail")
    publish(wire, entry())
    publish(wire, mail, origins=("code:mail",))
    publish(wire, entry(cron="*/2 * * * *"))
    publish(wire)
    assert standing(redis) == {"mail": mail}


def test_a_name_of_another_app_is_not_overwritten_and_both_are_named(
    wire: Wire, redis: Redis
) -> None:
    publish(wire, entry())
    log = publish(wire, entry(cron="1 * * * *", origin="code:mail"), origins=("code:mail",))
    assert standing(redis) == {"report": entry()}
    [(level, _, values)] = log.lines
    assert level == "warning"
    assert values == {"name": "report", "older": "code:app", "newer": "code:mail"}


def test_a_conflict_is_told_once_per_process(wire: Wire, redis: Redis) -> None:
    publish(wire, entry())
    log = Log()
    publisher = Publisher(Keys(), {"code:mail": [entry(origin="code:mail")]}, log)
    for _ in range(3):
        publisher.publish(wire)
    assert len(log.lines) == 1


def test_an_entry_may_move_from_the_file_to_the_code(wire: Wire, redis: Redis) -> None:
    origins = ("code:app", "file:app")
    publish(wire, entry(origin="file:app"), origins=origins)
    redis.hset("forkq:cron:last", "report", "5")
    publish(wire, entry(), origins=origins)
    assert standing(redis) == {"report": entry()}
    assert last(redis) == 5  # it is the same schedule: its ticks go on


def test_a_rolling_deploy_ends_with_the_new_definitions(wire: Wire, redis: Redis) -> None:
    """Old and new children publish in any order while it rolls; the last to start are new."""
    old, new = [entry(), entry("dropped")], [entry(cron="*/5 * * * *"), entry("added")]
    for entries in (old, new, old, new, new):
        publish(wire, *entries)
    assert standing(redis) == {one.name: one for one in new}
    assert set(redis.hkeys("forkq:cron:last")) == {b"report", b"added"}


def test_publishers_at_the_same_moment_publish_once(wire: Wire, redis: Redis) -> None:
    """The one that comes second finds it done: the last tick is not touched again."""

    class Beaten(Wire):
        """Another child publishes after we have read."""

        def script(self, *arguments: Any) -> Any:
            if not redis.exists("forkq:cron"):
                publish(wire, entry())
                redis.hset("forkq:cron:last", "report", "5")
            return super().script(*arguments)

    beaten = Beaten(wire.url)
    beaten.connect()
    log = publish(beaten, entry())
    beaten.close()
    assert standing(redis) == {"report": entry()}
    assert last(redis) == 5
    assert log.lines == []


def test_what_a_stranger_wrote_under_our_name_is_replaced_and_other_things_stay(
    wire: Wire, redis: Redis
) -> None:
    redis.hset("forkq:cron", mapping={"report": "{nope", "theirs": "[1]"})
    publish(wire, entry())
    assert Entry.decode(redis.hget("forkq:cron", "report") or b"") == entry()  # type: ignore[arg-type]
    assert redis.hget("forkq:cron", "theirs") == b"[1]"


def test_publishing_works_on_a_full_server(own_server: Server) -> None:
    redis, wire = own_server.client(), Wire(own_server.url)
    own_server.cli("CONFIG", "SET", "maxmemory", 1)
    wire.connect()
    publish(wire, entry())
    wire.close()
    assert standing(redis) == {"report": entry()}


def test_a_job_that_this_tree_should_run_and_does_not_know_is_warned_of(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "names", lambda: ["Known"])
    log = Log()
    entries = [
        entry("known", job={"class": "Known", "args": []}),
        entry("theirs", job={"class": "Ruby", "args": [], "queue": "ruby"}),
        entry("typo", job={"class": "Knwon", "args": []}),
    ]
    publisher = Publisher(Keys(), {"code:app": entries}, log, worked_on=["default", "mail"])
    publisher.publish(wire)
    publisher.publish(wire)
    [(_, event, values)] = [line for line in log.lines if line[0] == "warning"]
    assert "not registered" in event
    assert values == {"names": ["typo"]}


def test_under_a_prefix_only_its_own_definitions_change(wire: Wire, redis: Redis) -> None:
    publish(wire, entry())
    Publisher(Keys("app:"), {"code:app": []}, Log()).publish(wire)
    assert list(standing(redis)) == ["report"]
