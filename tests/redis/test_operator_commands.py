"""What the operator's commands say where nothing is there, and how they agree with each other."""

from __future__ import annotations

import json
import re
import socket
import time
from typing import Any

import pytest
from redis import Redis

from tests.redis.shell import Shell

pytestmark = pytest.mark.usefixtures("environment")


def job(jid: str, **more: Any) -> str:
    past = time.time() - 7200
    return json.dumps(
        {"class": "shop.Mail", "args": [1], "queue": "mail", "jid": jid, "created_at": past, **more}
    )


@pytest.mark.parametrize("command", ["web", "metrics"])
def test_a_port_in_use_is_no_wrong_usage(command: str, shell: Shell) -> None:
    pytest.importorskip({"web": "uvicorn", "metrics": "prometheus_client"}[command])
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = f"127.0.0.1:{other.getsockname()[1]}"
        assert shell(f"{command} --listen {where}") == 1
    remedy = "--listen chooses another address"
    assert shell.err == f"forkq: cannot listen at {where}: Address already in use; {remedy}\n"


def test_a_queue_that_nothing_serves_says_so_also_if_it_is_empty(
    redis: Redis, shell: Shell
) -> None:
    redis.sadd("queues", "mail")
    assert shell("queues show mail") == 0
    assert "served by  no living process" in shell.out


CRASH = {"at": 1.5e9, "signal": 11, "rss": 4096, "jobs": 2, "host": "web1", "stack": "in f\nin g"}


@pytest.mark.parametrize(
    ("place", "key"), [("dead", "dead"), ("retries", "retry"), ("scheduled", "schedule")]
)
def test_find_shows_what_show_does_but_the_arguments(
    place: str, key: str, redis: Redis, shell: Shell
) -> None:
    error = {"error_class": "Oops", "error_message": "no box", "retry_count": 2, "failed_at": 1.5e9}
    marks = {"forkq": {"crashes": [CRASH], "suspect": True}}
    redis.zadd(key, {job("a", tags=["t"], **error, **marks): 1.6e9})
    texts = []
    for command in (f"{place} show a", "find a"):
        assert shell(command) == 0
        texts.append(shell.out)
        assert "SIGSEGV, peak 4MB, with 2 jobs in progress, on web1" in shell.out
        assert "in g\n" in shell.out
    assert [line for line in texts[0].splitlines() if not line.startswith("args ")] == (
        texts[1].splitlines()
    )
    known = []
    for command in (f"{place} show a --json", "find a --json"):
        assert shell(command) == 0
        known.append(json.loads(shell.out))
    assert known[0].pop("args") == [1]
    assert known[0] == known[1]
    assert (known[1]["at"], known[1]["attempts"], known[1]["runs_alone"]) == (1.6e9, 3, True)


@pytest.mark.parametrize("place", ["dead", "retries", "scheduled", "jobs"])
def test_a_job_that_is_gone_is_no_question(place: str, redis: Redis, shell: Shell) -> None:
    """Without a terminal a question is refused, with exit code 2."""
    one = {"retries": "retrying", "jobs": "queued"}.get(place, place)
    assert shell(f"{place} delete gone") == 1
    assert shell.err == f"gone is no {one} job; `forkq find gone` looks everywhere\n"
    for line in (f"{place} delete gone --dry-run", f"{place} delete gone --yes"):
        assert (shell(line), shell.out) == (1, "")


def test_a_job_that_no_heartbeat_tells_of_runs_for_a_shorter_time_than_that(
    redis: Redis, shell: Shell
) -> None:
    """In the table, and on the page of its queue; `find` does not say since when. The process that
    the table names is one that `processes` takes."""
    identity = "web1.example.org:17:0123456789ab"
    raw = json.dumps({"class": "Crawl", "jid": "a", "queue": "mail", "enqueued_at": 1.5e9})
    info = {"hostname": "web1.example.org", "pid": 17, "started_at": 1.5e9, "queues": ["mail"]}
    record: dict[Any, Any] = {"info": json.dumps(info), "concurrency": 1, "beat": time.time() - 8}
    redis.sadd("queues", "mail")
    redis.sadd("processes", identity)
    redis.hset(identity, mapping=record)
    redis.hset("{queue:mail}:inflight", f"{identity}/7", raw)
    assert shell("running") == 0
    row = r"^a +Crawl +mail +< [\d.]+ s +< [\d.]+ s +- +(web1\S+)$"
    shown = re.search(row, shell.out, re.MULTILINE)
    assert shown is not None
    assert shell(f"processes show {shown[1]}") == 0
    assert "identity    web1.example.org:17:" in shell.out
    assert shell("queues show mail") == 0
    assert re.search(r"runs +a Crawl, for at most [\d.]+ s$", shell.out, re.MULTILINE)
    assert shell("find a") == 0
    assert "location" in shell.out
    assert "running_since" not in shell.out


def test_options_may_stand_before_the_command(redis: Redis, shell: Shell) -> None:
    """In each group; the value of an option is no command."""
    redis.sadd("queues", "list", "mail")
    redis.lpush("queue:mail", job("a"))
    for line in (
        "queues --json list", "dead --limit 3 list", "jobs -q mail list", "processes --json list",
        "classes --json list", "cron --json list", "limits --json show", "config --json show",
        "jobs --json show a", "queues --json", "jobs -q list",
    ):  # fmt: skip
        assert shell(line) in ((1,) if line == "jobs -q list" else (0,)), shell.err
    assert shell("jobs -q mail --yes delete") == 0
    assert redis.llen("queue:mail") == 0
    assert shell("--json queues") == 2
    assert "Options follow the command: forkq COMMAND --json" in shell.err
    assert shell("queues --json lst") == 2


@pytest.mark.parametrize("queue", ["mail:2", "mail,2"])
def test_a_weight_is_refused_where_no_weights_are_taken(
    redis: Redis, shell: Shell, queue: str
) -> None:
    for line in (f"jobs list -q {queue}", f"dead -q {queue}", f"jobs delete -y -q {queue}"):
        assert shell(line) == 2
        assert f"there is no queue '{queue}'" in shell.err
        assert "write -q mail" in shell.err
    redis.sadd("queues", queue)
    assert shell(f"dead -q {queue}") == 1
    assert "no dead job matches" in shell.out


def test_a_pause_of_the_shell_names_the_user_and_the_host(redis: Redis, shell: Shell) -> None:
    redis.sadd("queues", "mail")
    redis.lpush("queue:mail", job("a"))
    assert shell("pause mail") == 0
    assert shell("queues show mail") == 0
    assert re.search(rf"it is paused by \S+@{re.escape(socket.gethostname())}, ", shell.out)
