"""`forkq doctor --conformance`: the verdict on servers that lack something, and what it leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from forkq.doctor.script_trials import trials, trials_by_hand
from forkq.doctor.trial import Trial
from forkq.store import scripts
from forkq.store.connection import ResponseError
from forkq.wire.keys import Keys
from tests.redis.proxy import Proxy
from tests.redis.shell import Shell
from tests.support import bound, conformance
from tests.support.documents import snippets
from tests.support.server import Server
from tests.support.tree import CHECKOUT
from tests.support.waiting import wait_until

KINDS = conformance.table_in_page("kinds")
STALE = "run `python -m tests.support.conformance --docs`"


@pytest.mark.parametrize("kind", conformance.KINDS)
def test_the_page_has_the_verdict_on_each_kind_of_server(kind: str) -> None:
    try:
        found = conformance.verdict_of(kind)
    except RuntimeError:
        if "TLS" not in kind:
            raise
        pytest.skip("this server has no TLS")
    assert KINDS[kind] == found, STALE


def test_the_page_has_all_kinds_and_no_others() -> None:
    assert list(KINDS) == list(conformance.KINDS), STALE


def test_the_page_has_the_verdict_on_each_version() -> None:
    """Of a version that the page does not name, the suite says that it works."""
    found, rows = conformance.versions(), conformance.table_in_page("versions")
    assert found == {version: rows.get(version, "works") for version in found}, STALE


def test_each_script_does_a_task() -> None:
    keys, known = Keys(), {one for one in vars(scripts).values() if isinstance(one, scripts.Script)}
    tried = [*trials(keys, 1.0), *trials_by_hand(keys, 1.0)]
    assert {one.call.script for one in tried if isinstance(one.call, scripts.Call)} == known


@pytest.mark.parametrize(
    ("expected", "reply", "problem"),
    [
        (1, 1, ""),
        (..., b"anything", ""),
        (1, b"1", "the reply is b'1', not 1"),
        ([1], [1.0, 2], "the reply is [1.0, 2], not [1]"),
        (..., ResponseError("undeclared key"), "undeclared key"),
        (lambda reply: reply > 5, 5, "unexpected reply 5"),
    ],
)
def test_another_reply_than_that_of_redis_is_a_problem(
    expected: Any, reply: Any, problem: str
) -> None:
    assert Trial(("GET", "k"), expected).problem(reply) == problem


def test_lost_reports_of_changes_are_a_refusal(redis_server: Server, redis: Redis) -> None:
    """A proxy that takes CLIENT TRACKING and passes nothing on: jobs would wait for a minute."""
    with Proxy(redis_server.port) as proxy:
        proxy.swallows = b"invalidate"
        said = conformance.verdict(proxy.url)
    assert said.startswith("refused because of tracking: it is taken, and no change is reported")


# What a user sees


def test_the_page_shows_what_the_command_prints(
    environment: None, own_server: Server, shell: Shell
) -> None:
    """Numbers and the address differ."""
    assert shell(f"doctor --conformance --redis {own_server.url}") == 0
    [shown] = snippets(conformance.PAGE, "text")
    assert [line.split()[:2] for line in shown.text.splitlines()] == [
        line.split()[:2] for line in shell.out.splitlines()
    ]


def test_the_command_ends_with_the_verdict(
    environment: None, own_server: Server, shell: Shell
) -> None:
    assert shell(f"doctor --conformance --redis {own_server.url}") == 0
    last = shell.out.splitlines()[-1]
    assert last.startswith("ok    verdict       works: ")
    assert shell(f"doctor --conformance --json --redis {own_server.url}") == 0
    findings = [json.loads(line) for line in shell.out.splitlines()]
    assert [findings[-1][key] for key in ("check", "level")] == ["verdict", "ok"]
    own_server.cli("REPLICAOF", "127.0.0.1", 1)
    assert shell(f"doctor --conformance --redis {own_server.url}") == 1
    assert "verdict       refused because of version: " in shell.out.splitlines()[-1]


def test_a_server_that_is_away_is_refused(environment: None, shell: Shell) -> None:
    assert shell("doctor --conformance --redis redis://127.0.0.1:1") == 1
    assert "verdict       refused because of redis: Redis at redis://127.0.0.1:1" in shell.out
    assert shell("doctor --conformance --grace 5") == 2
    assert "leave --unit and --grace out" in shell.err
    assert shell("doctor --conformance --redis embedded") == 1
    assert "verdict       there is none: the embedded server runs only while" in shell.out
    assert "run `forkq start --redis embedded`, and this command beside it" in shell.out


def test_a_user_without_info_lacks_a_right(
    environment: None, own_server: Server, shell: Shell
) -> None:
    """No version is told to such a user; the verdict names the right, and not the version."""
    own_server.cli("ACL", "SETUSER", "ann", "on", ">p", "~*", "&*", "+@all", "-info")
    url = own_server.url.replace("unix://", "unix://ann:p@").replace("redis://", "redis://ann:p@")
    assert shell(f"doctor --conformance --redis {url}") == 1
    verdict = shell.out.splitlines()[-1]
    assert "verdict       refused because of rights: the user of the URL lacks +info" in verdict


def test_a_server_that_is_no_cluster_says_what_to_write(
    environment: None, redis_server: Server, shell: Shell
) -> None:
    url = redis_server.url.replace("redis://", "cluster://").removesuffix("/0")
    assert shell(f"doctor --conformance --redis {url}") == 1
    assert "so it is no Redis Cluster: write redis:// in place of cluster://" in shell.out


def test_a_server_that_hangs_says_where_to_look(
    environment: None, own_server: Server, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("forkq.toml").write_text(f'[redis]\nurl = "{own_server.url}"\nconnect_timeout = 0.2\n')
    monkeypatch.delenv("FORKQ_REDIS")
    own_server.pause()
    assert shell("queues list") == 6
    own_server.resume()
    assert "busy or stopped, or a firewall is before it: look at its host" in shell.err


# What it leaves


def test_it_touches_no_key_of_a_server_that_runs_jobs(redis: Redis, redis_server: Server) -> None:
    redis.lpush("queue:q", "job")
    redis.sadd("queues", "q")
    redis.zadd("dead", {"dead": 1})
    redis.set("forkq:leader", "somebody")
    before = {key: redis.dump(key) for key in redis.keys("*")}
    assert conformance.verdict(redis_server.url).startswith("works")
    assert {key: redis.dump(key) for key in redis.keys("*")} == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interruption_leaves_no_key_that_stays(
    redis: Redis, redis_server: Server, number: signal.Signals
) -> None:
    with Proxy(redis_server.port, delay=0.02) as proxy:
        command = [sys.executable, str(CHECKOUT / "bin" / "forkq"), "doctor", "--conformance"]
        process = subprocess.Popen(
            bound.command([*command, "--redis", proxy.url]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: len(redis.keys("*")) > 5, what="its keys")
        process.send_signal(number)
        _, told = process.communicate(timeout=20)
        code = process.returncode
    left = redis.keys("*")
    if number == signal.SIGKILL:
        assert code == -signal.SIGKILL
        assert left
        assert all(redis.ttl(key) > 0 for key in left)
    else:
        assert (code, left) == (130, [])
        assert told.startswith("forkq: interrupted: there is no verdict; the keys that it has made")
        assert "run the same command again" in told
