"""Publishing periodic jobs: Redis has what the app defines; other apps keep their entries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from redis import Redis

from forkq import registry
from forkq.child.cron.publish import Claim, Publisher
from forkq.cron.entry import Entry
from forkq.runtime.assignment import Assignment, Generation
from forkq.store.connection import RedisConnection
from forkq.wire.keys import Keys
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server

DAY = 86_400


@pytest.fixture
def connection(redis: Redis, redis_server: Server) -> Iterator[RedisConnection]:
    connection = RedisConnection(redis_server.url)
    connection.connect()
    yield connection
    connection.close()


def entry(name: str = "report", cron: str = "* * * * *", **more: Any) -> Entry:
    fields = {"origin": "code:app", "job": {"class": "Report", "args": []}, **more}
    return Entry.make(name=name, cron=cron, **fields)


def publish(
    connection: RedisConnection, *entries: Entry, origins: tuple[str, ...] = ("code:app",)
) -> RecordedLog:
    log = RecordedLog()
    by_origin: dict[str, list[Entry]] = {origin: [] for origin in origins}
    for one in entries:
        by_origin[one.origin].append(one)
    Publisher(Keys(), by_origin, log).publish(connection)
    return log


def published(redis: Redis) -> dict[str, Entry]:
    found: Any = redis.hgetall("forkq:cron")
    return {name.decode(): Entry.decode(raw) for name, raw in found.items()}


def last(redis: Redis, name: str = "report") -> int | None:
    found: Any = redis.hget("forkq:cron:last", name)
    return None if found is None else int(found)


def test_a_new_entry_stands_and_begins_now(connection: RedisConnection, redis: Redis) -> None:
    before = int(time.time())
    log = publish(connection, entry())
    assert published(redis) == {"report": entry()}
    assert before <= (last(redis) or 0) <= time.time()
    assert log.lines == [("info", "periodic jobs added", {"names": ["report"]})]


def test_publishing_the_same_again_writes_nothing_and_says_nothing(
    connection: RedisConnection, redis: Redis
) -> None:
    publish(connection, entry())
    redis.hset("forkq:cron:last", "report", "5")
    watcher = RedisConnection(connection.url)
    watcher.connect()
    watcher.track()
    watcher.pipeline([("CLIENT", "CACHING", "YES"), ("HGETALL", "forkq:cron")])
    log = publish(connection, entry())
    assert log.lines == []
    assert last(redis) == 5
    assert watcher.wait(0.2) is False
    publish(connection, entry(cron="*/2 * * * *"))  # and the watcher would have noticed
    assert watcher.wait(5) is True
    watcher.close()


@pytest.mark.parametrize("change", [{"cron": "*/2 * * * *"}, {"tz": "Europe/Berlin"}])
def test_a_changed_schedule_begins_now(
    connection: RedisConnection, redis: Redis, change: dict[str, str]
) -> None:
    publish(connection, entry())
    redis.hset("forkq:cron:last", "report", "5")
    log = publish(connection, entry(**change))
    assert published(redis) == {"report": entry(**change)}
    assert (last(redis) or 0) > 5
    assert log.events() == ["periodic jobs changed"]


def test_an_entry_that_is_enabled_again_begins_now(
    connection: RedisConnection, redis: Redis
) -> None:
    publish(connection, entry(enabled=False))
    redis.hset("forkq:cron:last", "report", "5")
    publish(connection, entry(enabled=True))
    assert (last(redis) or 0) > 5


@pytest.mark.parametrize(
    "change", [{"missed": 7}, {"jitter": 3.0}, {"overlap": "skip"}, {"enabled": False}]
)
def test_any_other_change_leaves_the_last_tick(
    connection: RedisConnection, redis: Redis, change: dict[str, Any]
) -> None:
    publish(connection, entry())
    redis.hset("forkq:cron:last", "report", "5")
    publish(connection, entry(**change))
    assert published(redis) == {"report": entry(**change)}
    assert last(redis) == 5


def test_a_last_tick_never_goes_back(connection: RedisConnection, redis: Redis) -> None:
    """Another host's clock may be a little ahead: its tick must not come twice."""
    publish(connection, entry())
    ahead = int(time.time()) + 30
    redis.hset("forkq:cron:last", "report", ahead)
    publish(connection, entry(cron="*/2 * * * *"))
    assert last(redis) == ahead


@pytest.mark.parametrize("wrong", [3600, -3600])
def test_an_entry_begins_now_by_the_servers_clock(
    connection: RedisConnection, redis: Redis, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() + wrong)
    publish(connection, entry())
    assert last(redis) == pytest.approx(true(), abs=3)


def test_a_last_tick_of_a_clock_that_was_wrong_does(
    connection: RedisConnection, redis: Redis
) -> None:
    publish(connection, entry())
    redis.hset("forkq:cron:last", "report", int(time.time()) + 2 * DAY)
    publish(connection, entry(cron="*/2 * * * *"))
    assert (last(redis) or 0) <= time.time()


def test_what_the_app_no_longer_defines_goes_with_all_its_notes(
    connection: RedisConnection, redis: Redis
) -> None:
    publish(connection, entry(), entry("other"))
    redis.hset("forkq:cron:pending", "other", "abc")
    log = publish(connection, entry())
    assert list(published(redis)) == ["report"]
    assert redis.hkeys("forkq:cron:last") == [b"report"]
    assert not redis.exists("forkq:cron:pending")
    [(level, event, values)] = log.lines
    assert (level, values) == ("warning", {"names": ["other"]})
    assert "removed" in event
    assert "different tags" in event
    publish(connection)
    assert published(redis) == {}


def test_two_apps_leave_each_other_alone(connection: RedisConnection, redis: Redis) -> None:
    mail = entry("mail", origin="code:mail")
    publish(connection, entry())
    publish(connection, mail, origins=("code:mail",))
    publish(connection, entry(cron="*/2 * * * *"))
    publish(connection)
    assert published(redis) == {"mail": mail}


def test_names_of_an_app_that_runs_are_not_overwritten_and_logged_once(
    connection: RedisConnection, redis: Redis
) -> None:
    """One line for all of them; and there is something left to do, with each beat."""
    redis.set("forkq:cron:origin:app", "runs", ex=60)
    publish(connection, entry(), entry("weekly"), entry("unlike"))
    log = RecordedLog()
    ours = [entry(name, "1 * * * *", origin="code:mail") for name in ("report", "weekly", "mail")]
    publisher = Publisher(Keys(), {"code:mail": ours}, log)
    assert [publisher.publish(connection) for _ in range(3)] == [True] * 3
    assert published(redis)["report"] == entry()
    assert published(redis)["mail"] == ours[2]
    [(_, event, values)] = [line for line in log.lines if line[0] == "warning"]
    assert "within a minute after it has ended" in event
    assert values == {"names": ["report", "weekly"], "origin": "code:app"}


def test_names_of_an_app_that_has_ended_are_taken_over_with_their_last_ticks(
    connection: RedisConnection, redis: Redis
) -> None:
    """After a change of the app's name or tag, say; but not if they have other times now."""
    redis.set("forkq:cron:origin:app", "runs", ex=60)
    publish(connection, entry(), entry("weekly", "0 0 * * 1"), entry("unlike"))
    for name in ("report", "weekly"):
        redis.hset("forkq:cron:last", name, "5")
    log = RecordedLog()
    ours = [entry(origin="file:mail"), entry("weekly", "0 0 * * 2", origin="file:mail")]
    publisher = Publisher(Keys(), {"file:mail": ours}, log)
    assert publisher.publish(connection) is True
    redis.delete("forkq:cron:origin:app")
    assert publisher.publish(connection) is False
    assert published(redis) == {"report": ours[0], "weekly": ours[1], "unlike": entry("unlike")}
    assert last(redis) == 5
    assert (last(redis, "weekly") or 0) > 5
    assert log.lines[1:] == [
        (
            "info",
            "periodic jobs taken over from an app that does not run",
            {"names": ["report", "weekly"]},
        )
    ]
    assert publisher.publish(connection) is False
    assert len(log.lines) == 2


def test_what_was_added_at_run_time_is_not_taken_over(
    connection: RedisConnection, redis: Redis
) -> None:
    added = entry(origin="api")
    redis.hset("forkq:cron", "report", added.encode())
    log = publish(connection, entry())
    assert published(redis) == {"report": added}
    [(level, event, values)] = log.lines
    assert level == "warning"
    assert "forkq cron remove" in event
    assert values == {"names": ["report"], "origin": "api"}


def test_an_entry_may_move_from_the_file_to_the_code(
    connection: RedisConnection, redis: Redis
) -> None:
    origins = ("code:app", "file:app")
    publish(connection, entry(origin="file:app"), origins=origins)
    redis.hset("forkq:cron:last", "report", "5")
    publish(connection, entry(), origins=origins)
    assert published(redis) == {"report": entry()}
    assert last(redis) == 5  # it is the same schedule: its ticks go on


def test_a_rolling_deploy_ends_with_the_new_definitions(
    connection: RedisConnection, redis: Redis
) -> None:
    """Old and new children publish in any order while it rolls; the last to start are new."""
    old, new = [entry(), entry("dropped")], [entry(cron="*/5 * * * *"), entry("added")]
    for entries in (old, new, old, new, new):
        publish(connection, *entries)
    assert published(redis) == {one.name: one for one in new}
    assert set(redis.hkeys("forkq:cron:last")) == {b"report", b"added"}


class Deploy:
    """Children of one service, each with its generation's code, at a time that the test sets."""

    def __init__(self, connection: RedisConnection) -> None:
        self.connection = connection
        self.at = 1000.0
        self.log = RecordedLog()

    def child(self, generation: Generation, number: int, *entries: Entry) -> Publisher:
        assignment = Assignment("default.0", None, "", -1, -1, False, generation, number)
        claim = Claim(Keys(), "app", assignment, RecordedLog(), lambda: self.at)
        return Publisher(Keys(), {"code:app": entries}, self.log, newest=claim.renew)


@pytest.fixture
def deploy(connection: RedisConnection) -> Deploy:
    return Deploy(connection)


OLD, NEW = Generation("old", 10.0), Generation("new", 900.0)
V1 = [entry(), entry("dropped")]
V2 = [entry(cron="*/5 * * * *"), entry("added")]


def test_a_respawned_child_of_the_old_version_does_not_bring_its_jobs_back(
    deploy: Deploy, redis: Redis
) -> None:
    deploy.child(OLD, 1, *V1).publish(deploy.connection)
    deploy.child(NEW, 1, *V2).publish(deploy.connection)
    assert deploy.child(OLD, 2, *V1).publish(deploy.connection) is False
    assert published(redis) == {one.name: one for one in V2}


def test_the_newest_generation_repairs_what_an_older_one_wrote(
    deploy: Deploy, redis: Redis
) -> None:
    """A child of an earlier forkq, say, which asks for no claim."""
    new = deploy.child(NEW, 1, *V2)
    new.publish(deploy.connection)
    publish(deploy.connection, *V1)
    new.publish(deploy.connection)
    assert published(redis) == {one.name: one for one in V2}
    logged = {(level, *values["names"]) for level, _, values in deploy.log.lines[1:]}
    assert logged == {("warning", "dropped"), ("warning", "added", "report")}


def test_definitions_that_were_deleted_come_back_and_no_tick_is_lost(
    deploy: Deploy, redis: Redis
) -> None:
    child = deploy.child(NEW, 1, *V2)
    child.publish(deploy.connection)
    redis.hset("forkq:cron:last", "report", "5")
    redis.delete("forkq:cron")
    child.publish(deploy.connection)
    assert published(redis) == {one.name: one for one in V2}
    assert last(redis) == 5
    assert "repaired" in deploy.log.events()[-1]


def test_of_one_generation_the_child_that_was_forked_last_publishes(
    deploy: Deploy, redis: Redis
) -> None:
    """Its code may be newer, if it was changed on disk; and two must not undo each other's."""
    first, second = deploy.child(NEW, 1, *V1), deploy.child(NEW, 2, *V2)
    for child in (first, second, first, second, first):
        child.publish(deploy.connection)
    assert published(redis) == {one.name: one for one in V2}
    assert len(deploy.log.lines) == 4  # two added; then one changed, one dropped, one added


def test_the_old_version_publishes_again_when_the_new_one_has_gone(
    deploy: Deploy, redis: Redis
) -> None:
    """After a while in which it has seen that no child renews the claim, and not before."""
    old, new = deploy.child(OLD, 1, *V1), deploy.child(NEW, 1, *V2)
    for _ in range(4):
        new.publish(deploy.connection)
        old.publish(deploy.connection)
        deploy.at += 40
    for _ in range(2):
        old.publish(deploy.connection)
        assert published(redis).keys() == {"report", "added"}
        deploy.at += 40
    old.publish(deploy.connection)
    assert published(redis) == {one.name: one for one in V1}
    new.publish(deploy.connection)  # it was only cut off
    assert published(redis) == {one.name: one for one in V2}


@pytest.mark.parametrize("claim", ["nonsense", "new 1 x", "x 99999999999999 1 5", ["a list"]])
def test_an_odd_claim_keeps_nobody_from_publishing_for_long(
    deploy: Deploy, redis: Redis, claim: str | list[str]
) -> None:
    if isinstance(claim, list):
        redis.rpush("forkq:cron:claim:app", *claim)
    else:
        redis.set("forkq:cron:claim:app", claim)
    child = deploy.child(NEW, 1, *V2)
    child.publish(deploy.connection)
    deploy.at += 100
    child.publish(deploy.connection)
    assert published(redis) == {one.name: one for one in V2}


def test_a_claim_works_on_a_full_server(own_server: Server) -> None:
    redis = own_server.client()
    own_server.cli("CONFIG", "SET", "maxmemory", 1)
    with closing(RedisConnection(own_server.url)) as connection:
        connection.connect()
        Deploy(connection).child(NEW, 1, entry()).publish(connection)
    assert published(redis) == {"report": entry()}


def test_publishers_at_the_same_moment_publish_once(
    connection: RedisConnection, redis: Redis
) -> None:
    """The one that comes second finds it done: the last tick is not touched again."""

    class Beaten(RedisConnection):
        """Another child publishes after we have read."""

        def script(self, *arguments: Any) -> Any:
            if not redis.exists("forkq:cron"):
                publish(connection, entry())
                redis.hset("forkq:cron:last", "report", "5")
            return super().script(*arguments)

    beaten = Beaten(connection.url)
    beaten.connect()
    log = publish(beaten, entry())
    beaten.close()
    assert published(redis) == {"report": entry()}
    assert last(redis) == 5
    assert log.lines == []


def test_what_another_program_wrote_under_our_name_is_replaced_and_other_things_stay(
    connection: RedisConnection, redis: Redis
) -> None:
    redis.hset("forkq:cron", mapping={"report": "{nope", "theirs": "[1]"})
    publish(connection, entry())
    assert Entry.decode(redis.hget("forkq:cron", "report") or b"") == entry()  # type: ignore[arg-type]
    assert redis.hget("forkq:cron", "theirs") == b"[1]"


def test_publishing_works_on_a_full_server(own_server: Server) -> None:
    redis, connection = own_server.client(), RedisConnection(own_server.url)
    own_server.cli("CONFIG", "SET", "maxmemory", 1)
    connection.connect()
    publish(connection, entry())
    connection.close()
    assert published(redis) == {"report": entry()}


def test_a_job_that_this_tree_should_run_and_does_not_know_is_warned_of(
    connection: RedisConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "names", lambda: ["Known"])
    log = RecordedLog()
    entries = [
        entry("known", job={"class": "Known", "args": []}),
        entry("theirs", job={"class": "Ruby", "args": [], "queue": "ruby"}),
        entry("typo", job={"class": "Knwon", "args": []}),
    ]
    publisher = Publisher(Keys(), {"code:app": entries}, log, worked_on=["default", "mail"])
    publisher.publish(connection)
    publisher.publish(connection)
    [(_, event, values)] = [line for line in log.lines if line[0] == "warning"]
    assert "not registered" in event
    assert values == {"names": ["typo"]}


def test_under_a_prefix_only_its_own_definitions_change(
    connection: RedisConnection, redis: Redis
) -> None:
    publish(connection, entry())
    Publisher(Keys("app:"), {"code:app": []}, RecordedLog()).publish(connection)
    assert list(published(redis)) == ["report"]
