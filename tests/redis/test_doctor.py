"""The doctor's checks of Redis and of the jobs that wait there, each in both of its outcomes."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from redis import Redis

from forkq.client import Client
from forkq.config.capsule import Capsule
from forkq.config.config import Config, RedisSettings
from forkq.default_client import use
from forkq.doctor.backlog import classes
from forkq.doctor.batches import batches
from forkq.doctor.conformance import conformance
from forkq.doctor.examination import all_findings
from forkq.doctor.finding import Finding, examine
from forkq.doctor.flows import flows, signals
from forkq.doctor.locks import locks, sidekiq
from forkq.doctor.network import clock, latency, rights
from forkq.doctor.probe import AppReport
from forkq.doctor.redis_settings import clients, huge_pages, idle_timeout, output_buffers
from forkq.doctor.server import ExaminedServer as Examined
from forkq.doctor.server import eviction, persistence, redis_memory, version
from forkq.doctor.service import service
from forkq.doctor.versions import versions
from forkq.store.connection import RedisConnection
from forkq.store.refusals import RIGHTS
from forkq.values import replace
from tests.redis.proxy import Proxy
from tests.redis.test_steps_command import wait
from tests.support.documents import redis_rights
from tests.support.server import Server
from tests.support.waiting import wait_until
from tests.unit.doctor.shared import config

APP = AppReport(jobs=("Good",))


def settings(url: str, *names: str, prefix: str = "") -> Config:
    capsule = Capsule("default", tuple((name, 0) for name in names or ("default",)))
    return config(redis=RedisSettings(url=url, prefix=prefix), capsules=(capsule,))


@contextmanager
def examined(configuration: Config) -> Iterator[Examined]:
    """The server of this configuration, connected; forkq's API uses it too."""
    connection = RedisConnection(configuration.redis.url)
    connection.connect()
    with closing(use(configuration)), closing(connection):
        yield Examined(connection, configuration)


def found(url: str, check: Callable[[Examined], Finding]) -> Finding:
    with examined(settings(url)) as server:
        return check(server)


def levels(url: str, *checks: Callable[[Examined], Finding]) -> list[str]:
    return [found(url, check).level for check in checks]


# The server


def test_a_server_that_is_set_up_well_is_ok(own_server: Server) -> None:
    good = levels(own_server.url, version, eviction, persistence, redis_memory, clock, rights)
    assert good == ["ok"] * 6


def test_a_server_that_would_lose_jobs_is_told(own_server: Server) -> None:
    own_server.cli("CONFIG", "SET", "maxmemory-policy", "allkeys-lru", "appendonly", "no")
    assert levels(own_server.url, eviction, persistence) == ["warn", "warn"]
    own_server.cli("CONFIG", "SET", "maxmemory", "1gb")
    assert levels(own_server.url, eviction) == ["fail"]
    own_server.cli("CONFIG", "SET", "save", "3600 1")
    snapshots = found(own_server.url, persistence)
    assert (snapshots.level, snapshots.what) == ("warn", "RDB snapshots alone (3600 1)")


def test_what_may_be_lost_all_the_same_is_told(own_server: Server) -> None:
    own_server.cli("CONFIG", "SET", "appendonly", "yes")
    assert found(own_server.url, persistence).what == (
        "the append-only file is on (appendfsync everysec): if its host crashes, about the last "
        "second is lost"
    )
    replica = Server(tcp=True).start()
    primary = Server(tcp=True, aof=True).start()
    try:
        replica.cli("REPLICAOF", "127.0.0.1", primary.port)
        wait_until(
            lambda: primary.cli("INFO", "replication")["connected_slaves"] == 1, what="the replica"
        )
        primary.cli("CONFIG", "SET", "appendfsync", "always")
        told = found(primary.url, persistence)
        assert told.level == "ok"
        assert "always): nothing that Redis has confirmed is lost; a replica" in told.what
        assert "has not received; min-replicas-to-write bounds that, and is off" in told.what
        primary.cli("CONFIG", "SET", "min-replicas-to-write", "1", "min-replicas-max-lag", "7")
        assert found(primary.url, persistence).what.endswith("may lack the last 7 s")
    finally:
        replica.close()
        primary.close()


def test_a_full_server_fails_and_has_its_rights_still(own_server: Server) -> None:
    own_server.cli("CONFIG", "SET", "maxmemory", 1)
    assert levels(own_server.url, redis_memory, rights) == ["fail", "ok"]


def living(redis: Redis, identity: str, host: str, concurrency: int) -> None:
    info = {"hostname": host, "pid": 1, "started_at": 1.0, "concurrency": concurrency}
    redis.sadd("processes", identity)
    redis.hset(identity, "info", json.dumps(info))


@pytest.mark.parametrize(("limit", "level"), [(41, "fail"), (42, "warn"), (62, "ok")])
def test_the_connections_of_all_hosts_against_maxclients(
    own_server: Server, limit: int, level: str
) -> None:
    """This tree has three processors and needs 10, a child of 15 elsewhere needs 32."""
    redis = own_server.client()
    living(redis, "far:1:a", "far", 15)
    living(redis, "here:1:a", socket.gethostname(), 1)
    redis.sadd("processes", "gone:1:a")
    redis.sadd("processes", b"\xff")
    own_server.cli("CONFIG", "SET", "maxclients", limit)
    with examined(settings(own_server.url)) as server:
        capsule = Capsule("default", concurrency=3)
        one = clients(server, config(capsules=(capsule,)))
    assert one.level == level
    assert f"maxclients is {limit}; forkq's processes of all hosts open up to 42 " in one.what


@pytest.mark.parametrize(("count", "said"), [("1", "1 is open now"), ("2", "2 are open now")])
def test_how_many_connections_are_open(redis_server: Server, count: str, said: str) -> None:
    with examined(settings(redis_server.url)) as server:
        server.info = {**server.info, "connected_clients": count}
        assert clients(server, config()).what.endswith(
            f"of these; {said}, those of other programs included"
        )


def test_what_ends_connections_is_told(own_server: Server) -> None:
    def buffers(server: Examined) -> Finding:
        return output_buffers(server, config(max_payload_size=4 << 20))

    assert levels(own_server.url, idle_timeout, buffers) == ["ok", "ok"]
    own_server.cli("CONFIG", "SET", "timeout", 300)
    own_server.cli("CONFIG", "SET", "client-output-buffer-limit", "normal 0 4mb 10")
    assert levels(own_server.url, idle_timeout, buffers) == ["ok", "warn"]
    own_server.cli("CONFIG", "SET", "timeout", 5)
    own_server.cli("CONFIG", "SET", "client-output-buffer-limit", "normal 4mb 0 0")
    assert levels(own_server.url, idle_timeout, buffers) == ["warn", "fail"]
    assert "normal 4194304 0 0" in found(own_server.url, buffers).what


def test_a_server_on_this_host_is_found(own_server: Server) -> None:
    assert "not on this host" not in found(own_server.url, huge_pages).what


def test_rights_that_cannot_be_asked_for_are_not_checked() -> None:
    server = Server(extra=("--rename-command", "MULTI", "")).start()
    try:
        unknown = found(server.url, rights)
    finally:
        server.close()
    assert (unknown.level, unknown.checked) == ("warn", False)


def test_a_replica_fails(own_server: Server) -> None:
    own_server.cli("REPLICAOF", "127.0.0.1", 1)
    replica = found(own_server.url, version)
    assert replica.level == "fail"
    assert "give the address of the master" in replica.what


def test_a_round_trip_that_takes_long_is_a_warning(redis_server: Server, redis: Redis) -> None:
    assert found(redis_server.url, lambda server: latency(server, slow=60)).level == "ok"
    with Proxy(redis_server.port, delay=0.02) as proxy:
        slow = found(proxy.url, latency)
    assert slow.level == "warn"


def test_the_latency_of_a_slow_server_is_measured_for_a_moment_only(redis_server: Server) -> None:
    """Not twenty times the time-out."""
    with Proxy(redis_server.port, delay=0.3) as proxy:
        slow = found(proxy.url, latency)
    assert int(slow.what.partition("the longest of ")[2].partition(":")[0]) <= 3


def test_a_clock_that_is_wrong_is_a_warning(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = time.time
    for ahead, words in ((-90, "behind"), (90, "ahead of")):
        monkeypatch.setattr(time, "time", lambda ahead=ahead: true() + ahead)
        wrong = found(redis_server.url, clock)
        assert wrong.level == "warn"
        assert words in wrong.what


# Rights


@pytest.fixture
def least(redis_server: Server, redis: Redis) -> Iterator[Callable[..., str]]:
    """Makes a user with the documented rights and these rules besides; returns its URL."""

    def make(*rules: str) -> str:
        redis_server.cli("ACL", "SETUSER", "least", "reset", *redis_rights("forkq"), *rules)
        return redis_server.url.replace("redis://", "redis://least:x@")

    yield make
    redis_server.cli("ACL", "DELUSER", "least")


def test_the_documented_rights_are_enough_for_every_check(least: Callable[..., str]) -> None:
    report = {each.check: each for each in all_findings(settings(least()), None, None)}
    refused = [each for each in report.values() if "NOPERM" in str(each)]
    assert refused == []
    assert [name for name, each in report.items() if "ZCOUNT" in each.why] == ["due", "dead"]
    assert report["rights"].level == "ok"
    assert report["persistence"].checked is False  # CONFIG GET is no right that forkq needs


def test_missing_rights_are_named(least: Callable[..., str]) -> None:
    missing = found(least("-zadd", "-info"), rights)
    assert missing.level == "fail"
    assert "lacks +info +zadd" in missing.what


def test_a_script_that_lacks_a_right_leads_to_the_rights(least: Callable[..., str]) -> None:
    report = {each.check: each for each in conformance(settings(least()))}
    assert (report["by-hand"].level, report["by-hand"].remedy) == ("warn", RIGHTS)


@pytest.mark.parametrize(
    ("right", "names"),
    [
        ("-info", {"version", "eviction", "persistence", "redis-memory", "clients"}),
        ("-ping", {"latency"}),
        ("-time", {"clock", "service"}),
        ("-smembers", {"clients", "service", "classes", "versions"}),
        ("-llen", {"service", "classes"}),
        ("-lrange", {"classes"}),
        ("-zrange", {"versions"}),
        ("-hmget", {"service"}),
    ],
)
def test_a_check_without_its_right_says_so(
    least: Callable[..., str], right: str, names: set[str], redis: Redis
) -> None:
    redis.sadd("queues", "default")
    redis.lpush("queue:default", b"{}")
    url = least(right)
    checks: dict[str, Callable[[Examined], Finding]] = {
        "version": version, "eviction": eviction, "persistence": persistence,
        "redis-memory": redis_memory, "latency": latency, "clock": clock,
        "clients": lambda server: clients(server, settings(url)),
        "service": lambda server: replace(next(service(settings(url))), check="service"),
        "classes": lambda server: classes(server, settings(url), APP),
        "versions": versions,
    }  # fmt: skip
    with examined(settings(url)) as server:
        made = [examine(name, lambda check=check: check(server)) for name, check in checks.items()]  # type: ignore[misc]
    hidden = {each.check for each in made if "permissions" in each.why}
    assert hidden == names
    assert all(each.level == "warn" for each in made if each.check in names)


# Jobs that wait


def push(server: Server, queue: str, *names: str, prefix: str = "") -> None:
    with closing(Client(server.url, prefix=prefix)) as client:
        for name in names:
            client.push({"class": name, "args": [], "queue": queue})


def waiting(server: Server, *names: str, prefix: str = "") -> tuple[Finding, Finding]:
    configuration = settings(server.url, *names, prefix=prefix)
    with examined(configuration) as examination:
        found = {each.check: each for each in service(configuration)}
        return found["queues"], classes(examination, configuration, APP)


def test_jobs_that_are_served_and_registered_are_ok(redis_server: Server, redis: Redis) -> None:
    push(redis_server, "default", "Good")
    push(redis_server, "tenant-7", "Good")
    redis.sadd("queues", "empty")
    served, registered = waiting(redis_server, "default", "tenant-*")
    assert served.level == registered.level == "ok"
    assert "looked at 2 of 2" in registered.what


def test_a_queue_that_nothing_serves_is_named(redis_server: Server, redis: Redis) -> None:
    push(redis_server, "defualt", "Gone", "Gone")
    served, registered = waiting(redis_server)
    assert served.level == "warn"
    assert "no process serves queue defualt: 2 jobs waiting" in served.what
    assert registered.level == "ok"  # of a queue that this app does not serve, it says nothing


def isolate(redis: Redis, queue: str, *names: str) -> None:
    """Adds suspects, as the rescue of a dead child does."""
    redis.lpush(
        f"{{queue:{queue}}}:suspects", *(json.dumps({"class": n, "args": []}) for n in names)
    )
    redis.sadd("forkq:suspects", queue)


def test_suspects_that_nothing_serves_are_named(redis_server: Server, redis: Redis) -> None:
    """Also of a queue that was deleted."""
    push(redis_server, "mail", "Good")
    isolate(redis, "mail", "Good", "Good")
    isolate(redis, "gone", "Good")
    served, _ = waiting(redis_server)
    assert served.level == "warn"
    assert "no process serves 2 queues (mail, gone): 4 jobs waiting" in served.what
    redis.set("{queue:gone}:suspects", "another program's")
    assert "no process serves queue mail: 3 jobs waiting" in waiting(redis_server)[0].what
    redis.set("forkq:suspects", "another program's")
    assert "no process serves queue mail: 3 jobs waiting" in waiting(redis_server)[0].what


def test_a_class_that_only_suspects_have_is_looked_for(redis_server: Server, redis: Redis) -> None:
    push(redis_server, "default", "Good")
    isolate(redis, "default", "Gone", "Good")
    _, registered = waiting(redis_server)
    assert registered.level == "fail"
    assert "Gone (jobs: 1) (looked at 3 of 3 waiting jobs)" in registered.what


def test_a_queue_that_a_live_process_serves_is_served(redis_server: Server, redis: Redis) -> None:
    """Sidekiq's, for example. One that is quiet fetches nothing more."""
    push(redis_server, "mail", "Good")
    info = {"hostname": "h", "pid": 1, "started_at": 1.0, "queues": ["mai*"]}
    redis.sadd("processes", "h:1:a")
    redis.hset("h:1:a", mapping={"info": json.dumps(info), "quiet": "false"})
    assert waiting(redis_server)[0].what == "all queues with waiting jobs are served"
    redis.hset("h:1:a", "quiet", "true")
    assert waiting(redis_server)[0].level == "warn"


def test_a_queue_that_only_has_a_capsule_is_not_called_served(
    redis_server: Server, redis: Redis
) -> None:
    """Its tree may have ended, or run with other queues (`-q`)."""
    push(redis_server, "mail", "Good")
    push(redis_server, "tenant-7", "Good", "Good")
    found = waiting(redis_server, "mail", "tenant-*")[0]
    assert found.level == "ok"
    assert "serves 2 queues (tenant-7, mail): 3 jobs waiting" in found.what.replace(
        "mail, tenant-7", "tenant-7, mail"
    )
    assert found.what.endswith("; a capsule of this configuration has each of these queues")


def test_a_class_that_the_app_does_not_register_fails(redis_server: Server, redis: Redis) -> None:
    push(redis_server, "default", "Good", "Gone", "Gone")
    _, registered = waiting(redis_server)
    assert registered.level == "fail"
    assert "Gone (jobs: 2)" in registered.what
    assert "looked at 3 of 3" in registered.what


def test_a_prefix_is_kept_to(redis_server: Server, redis: Redis) -> None:
    push(redis_server, "other", "Gone")
    push(redis_server, "default", "Gone", prefix="app:")
    served, registered = waiting(redis_server, prefix="app:")
    assert (served.level, registered.level) == ("ok", "fail")


def test_without_an_app_the_classes_are_not_checked(redis_server: Server, redis: Redis) -> None:
    configuration = settings(redis_server.url)
    with examined(configuration) as server:
        assert classes(server, configuration, None).checked is False
        assert classes(server, configuration, AppReport(error="x")).checked is False


def test_without_a_waiting_job_there_is_nothing_to_look_at(
    redis_server: Server, redis: Redis
) -> None:
    redis.sadd("queues", "empty")
    said = [(found.level, found.what) for found in waiting(redis_server, "default", "empty")]
    assert said == [
        ("ok", "all queues with waiting jobs are served"),
        ("ok", "no job waits in a queue of this configuration"),
    ]


def test_the_sample_is_bounded_and_takes_both_ends(redis_server: Server, redis: Redis) -> None:
    """No command reads more than a few jobs of a queue, however many wait."""
    jobs = [json.dumps({"class": f"J{n}", "args": [], "jid": str(n)}) for n in range(5000)]
    redis.lpush("queue:default", *jobs)
    redis.sadd("queues", "default")
    redis.config_resetstat()
    _, registered = waiting(redis_server)
    assert "looked at 20 of 5,000" in registered.what
    stats: Any = redis.info("commandstats")
    assert stats["cmdstat_lrange"]["calls"] == 2
    redis.ltrim("queue:default", 0, 12)
    assert "looked at 13 of 13" in waiting(redis_server)[1].what


def test_large_payloads_end_the_sample(
    redis_server: Server, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkq.doctor.backlog._MOST_BYTES", 1000)
    big = json.dumps({"class": "Good", "args": ["x" * 2000]})
    for name in "abc":
        redis.lpush(f"queue:{name}", big)
        redis.sadd("queues", name)
    assert "looked at 1 of 3" in waiting(redis_server, "*")[1].what


def of_service(server: Server) -> dict[str, Finding]:
    configuration = settings(server.url)
    with examined(configuration):
        return {each.check: each for each in service(configuration)}


def test_a_class_that_is_held_is_a_warning(redis_server: Server, redis: Redis) -> None:
    assert of_service(redis_server)["held"].level == "ok"
    redis.hset("forkq:classes:held", "shop.Boom\x1b", "1700000000 12")
    finding = of_service(redis_server)["held"]
    assert finding.level == "warn"
    assert finding.what.startswith("class shop.Boom\\x1b has killed 5 processes within a minute")
    assert "forkq classes release" in finding.remedy


def test_an_empty_server_before_the_first_start_is_ok(redis_server: Server, redis: Redis) -> None:
    assert {each.level for each in of_service(redis_server).values()} == {"ok"}


def test_a_dead_fleet_is_told_in_the_words_of_the_screens(
    redis_server: Server, redis: Redis
) -> None:
    redis.zadd("retry", {f"{number}": time.time() - 3600 for number in range(50)})
    found = of_service(redis_server)
    warned = {name: each.what for name, each in found.items() if each.level != "ok"}
    assert warned == {
        "fleet": "no process runs jobs: 50 jobs waiting, start forkq",
        "leader": "no clock leads: nothing scheduled or retried becomes due",
        "due": "50 retries, due for up to 60 min, have not been moved to their queues",
    }
    assert {each.level for each in found.values()} == {"ok", "warn"}, (
        "a start must not depend on it"
    )


def test_threads_that_take_nothing_are_looked_at_twice(
    redis_server: Server, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkq.doctor.service._SECOND_LOOK", 3.0)
    monkeypatch.setattr("forkq.doctor.service._STILL", 2.0)
    info = {"hostname": "h", "pid": 1, "started_at": 1.0, "queues": ["mail"], "concurrency": 4}
    redis.sadd("processes", "h:1:a")
    redis.hset("h:1:a", mapping={"info": json.dumps(info), "beat": time.time()})
    stamp = int((time.time() - 120) * 1000)
    redis.sadd("queues", "mail")
    redis.lpush("queue:mail", json.dumps({"class": "A", "enqueued_at": stamp}))
    finding = of_service(redis_server)["idle"]
    assert finding.level == "warn"
    assert finding.what.startswith("4 threads free for queue mail, but take none of its 1 job for ")


def knowing(redis: Redis, host: str, version: int | None, *, quiet: bool = False) -> None:
    """A process that knows that version of payloads; None: one of Sidekiq's."""
    info = {"hostname": host, "pid": 1, "started_at": 1.0, "queues": ["default"]}
    known = {} if version is None else {"knows": version}
    redis.sadd("processes", f"{host}:1:a")
    state = "true" if quiet else "false"
    redis.hset(f"{host}:1:a", mapping={"info": json.dumps({**info, **known}), "quiet": state})


def needs(redis: Redis, version: Any, jid: str, due: float = 30.0) -> None:
    job = {"class": "Good", "args": [], "jid": jid, "forkq": {"v": version}}
    redis.zadd("schedule", {json.dumps(job): time.time() + due})


def test_one_version_in_all_processes_is_ok(redis_server: Server, redis: Redis) -> None:
    """One that fetches no more is on its way out, and Sidekiq's has none."""
    finding = found(redis_server.url, versions)
    assert finding.level == "ok"
    assert finding.what.startswith("no process fetches; this forkq knows version ")
    knowing(redis, "ruby", None)
    knowing(redis, "a", 2)
    knowing(redis, "b", 2)
    knowing(redis, "old", 1, quiet=True)
    redis.zadd("schedule", {b"malformed": 1, b'{"class":"Plain","args":[]}': 2})
    needs(redis, 2, "known")
    finding = found(redis_server.url, versions)
    fact = "all processes that fetch know version 2 of payloads: 2"
    assert (finding.level, finding.what) == ("ok", fact)


def test_a_mixed_fleet_is_a_warning(redis_server: Server, redis: Redis) -> None:
    for host, known in (("new", 2), ("b\x1b", 1), ("a", 0), ("ruby", None)):
        knowing(redis, host, known)
    needs(redis, 2, "waits")
    finding = found(redis_server.url, versions)
    assert finding.level == "warn"
    assert finding.what == (
        "not all processes know version 2 of payloads; older ones run on a (processes: 1), "
        "b\\x1b (processes: 1)"
    )
    assert "forkq restart" in finding.remedy


def test_jobs_that_no_process_can_run_are_a_warning(redis_server: Server, redis: Redis) -> None:
    """Also in a mixed fleet."""
    knowing(redis, "a", 1)
    knowing(redis, "b", 2)
    for number in range(25):
        needs(redis, 3, f"j{number}")
    needs(redis, "odd\x1b", "odd")
    needs(redis, 10**30, "huge")
    needs(redis, 4, "not due", due=3600)
    finding = found(redis_server.url, versions)
    assert finding.level == "warn"
    assert "3 (jobs: 25)" in finding.what
    assert "\x1b" not in finding.what
    assert finding.what.endswith("; the highest is 2")
    assert finding.why == "each is buried 24 hours after it was first put back"


def test_hostile_names_cannot_control_the_terminal(redis_server: Server, redis: Redis) -> None:
    hostile = "\x1b]0;owned\x07\r\n" + "x" * 10_000
    redis.lpush(f"queue:{hostile}", json.dumps({"class": "Good", "args": []}))
    redis.lpush(b"queue:\xff\xfe", b"{}")
    redis.lpush("queue:default", json.dumps({"class": hostile, "args": []}), b"\x00no json", b"[]")
    redis.set("queue:damaged", "a string")
    redis.sadd("queues", hostile, b"\xff\xfe", "default", "damaged")
    served, registered = waiting(redis_server)
    assert registered.level == "fail"
    for line in (str(served), str(registered)):
        assert line.isprintable()
        assert len(line) < 1000
    assert "\\x1b]0;owned\\x07" in served.what


def test_a_thousand_queues_are_asked_in_parts(redis_server: Server, redis: Redis) -> None:
    redis.sadd("queues", *(f"q{n}" for n in range(1200)))
    for n in range(1200):
        redis.lpush(f"queue:q{n}", b"{}")
    served, _ = waiting(redis_server)
    assert "and 1,197 more" in served.what


def test_batches_that_no_process_ends_are_named(redis: Redis, redis_server: Server) -> None:
    assert found(redis_server.url, batches).what == "0 batches: none waits for a person"
    old = time.time() - 4000
    states = (("broken", old), ("open", old), ("open", time.time()), ("sealed", old))
    for number, (state, at) in enumerate(states):
        redis.hset(f"forkq:batch:{number}", mapping={"state": state, "pushed_at": at})
        redis.zadd("forkq:batches", {f"forkq:batch:{number}": at})
    redis.hset("forkq:batch:flow", mapping={"state": "open", "pushed_at": old, "flow": 600})
    redis.hset("forkq:batch:odd", mapping={"state": "open", "pushed_at": "soon"})
    names = ("gone", "flow", "odd")
    redis.zadd("forkq:batches", {f"forkq:batch:{name}": old for name in names})
    told = found(redis_server.url, batches)
    assert told.level == "warn"
    assert told.what == (
        "the block of 1 batch has raised an error; 2 batches are open, and got no member for an "
        "hour; the push of 1 flow has not come to its end, so no step starts"
    )
    redis.delete("forkq:batches")
    redis.xadd("forkq:notes", {"to": "mail"}, id=f"{int(1000 * time.time()) - 120_000}-0")
    assert "a note for another shard waits for 2 min" in found(redis_server.url, batches).what
    redis.delete("forkq:notes")
    redis.xadd("forkq:notes", {"to": "mail"})
    assert found(redis_server.url, batches).level == "ok"


def test_flows_behind_dead_steps_are_named(redis: Redis, redis_server: Server) -> None:
    old: Any = {"state": "sealed", "flow": 1, "total": 9, "done": 2}
    rows: Any = ({"dead": 2}, {"dead": 7}, {"other": 1}, {"dead": 3}, {"dead": "x"})
    for number, row in enumerate(rows):
        redis.hset(f"forkq:batch:{number}", mapping={**old, **row})
        at = time.time() if number == 3 else 7000
        redis.zadd("forkq:batches", {f"forkq:batch:{number}": at})
    told = found(redis_server.url, flows)
    assert told.level == "warn"
    assert told.what == "1 flow with 2 dead steps, and without a change for 10 min"
    redis.delete("forkq:batch:0")
    told = found(redis_server.url, flows)
    assert told.level == "ok"
    assert told.what.startswith("3 flows without a change for 10 min")


def test_jobs_that_wait_for_signals_too_long_or_in_vain_are_named(
    redis: Redis, redis_server: Server
) -> None:
    assert found(redis_server.url, signals).what.startswith("looked at 0 scheduled jobs")
    wait(redis, "j1", "approved:7", until=time.time() + 9000)
    wait(redis, "j2", "approved:8", until=time.time() + 9000)
    redis.zadd("schedule", {b"{": 1.0})
    told = found(redis_server.url, signals)
    assert (told.level, told.what) == (
        "ok",
        "2 jobs wait for signals: approved (2); looked at 3 scheduled jobs; the longest for 30 s",
    )
    wait(redis, "j3", "paid", until=time.time() + 9000, since=31 * 86_400)
    told = found(redis_server.url, signals)
    assert told.level == "warn"
    assert told.what.endswith("the first has waited for 31 d")
    redis.zadd("schedule", {f"{number}": 0 for number in range(1000)})
    told = found(redis_server.url, signals)
    assert told.what == "looked at 1,000 of 1,004 scheduled jobs: none waits for a signal"
    redis.zremrangebyscore("schedule", 0, 0)
    redis.delete("forkq:event:approved:7")
    told = found(redis_server.url, signals)
    assert told.what.endswith("no signal wakes 1 of these")


def test_locks_that_no_leader_looks_after_are_named(
    client: Client, redis: Redis, redis_server: Server
) -> None:
    """By what the pushes have noted that have met them: no other lock is looked at."""
    for number in range(300):
        client.push({"class": f"Far{number % 2}\x1b", "args": [number], "unique_for": 600})
    assert found(redis_server.url, locks).level == "ok"
    names = list(redis.scan_iter("forkq:unique:*"))
    for name in names:
        redis.hset(name, "sure", 1)
    for number in range(3):
        client.push({"class": f"Far{number % 2}\x1b", "args": [number], "unique_for": 600})
    redis.config_resetstat()
    told = found(redis_server.url, locks)
    stats: Any = redis.info("commandstats")
    assert "cmdstat_scan" not in stats
    assert stats["cmdstat_hmget"]["calls"] == 3
    assert told.level == "warn"
    assert told.what == (
        "pushes have met 3 locks in doubt: Far0\\x1b (locks: 2), Far1\\x1b (locks: 1); "
        "no clock leads that looks for their jobs"
    )
    redis.set("forkq:leader", "h:1:a h:1:b")
    told = found(redis_server.url, locks)
    assert told.level == "ok"
    assert told.what.endswith("; the leader looks for their jobs")
    left: Any = redis.pttl("forkq:unique:doubt")
    redis.pexpire("forkq:unique:doubt", left - 300_000)
    told = found(redis_server.url, locks)
    assert told.level == "warn"
    assert told.what.endswith("; they still are, 5 min after the last such push")
    for name in names:
        redis.hset(name, "sure", round(time.time() * 1000) + 60_000)
    assert found(redis_server.url, locks).level == "ok"


def test_a_doubted_lock_of_another_type_is_no_lock(redis: Redis, redis_server: Server) -> None:
    redis.hset("forkq:unique:doubt", "d1", "")
    redis.set("forkq:unique:d1", "a string")
    assert found(redis_server.url, locks).level == "ok"


def test_queues_with_marked_jobs_that_sidekiq_serves_are_named(
    client: Client, redis: Redis, redis_server: Server
) -> None:
    knowing(redis, "ruby", None)
    client.push({"class": "Far", "args": [1], "queue": "other", "unique_for": 600})
    client.push({"class": "Far", "args": []})
    assert found(redis_server.url, sidekiq).level == "ok"
    client.push({"class": "Far", "args": [], "unique_for": 600})
    told = found(redis_server.url, sidekiq)
    assert told.level == "warn"
    assert told.what.endswith("that have features of forkq: default")
    knowing(redis, "ruby", None, quiet=True)
    assert found(redis_server.url, sidekiq).level == "ok"
