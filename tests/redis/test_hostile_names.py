"""What stands in Redis reaches a terminal as text: it moves no cursor, and adds no line of its own.

Whoever may write to Redis chooses queue names, classes, jids, error messages, hosts and tags.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from forkq.cli.main import _run
from forkq.master.status_file import StatusFile
from forkq.wire.keys import Keys
from tests.support.printed import objects

# ESC and its C1 form, bell, carriage return, a line feed, DEL, and a right-to-left override.
EVIL = "a\x1bc\x9b31m\x07\r\x7f\u202e\u2028forged line"
LINE = "\nforged: all is well"
ARGUMENT = "medical-record-4711"
SECRETS = {"password": ARGUMENT, "token": [ARGUMENT], "Authorization": ARGUMENT, "n": ARGUMENT}
JID = "0" * 24
DEEP = json.loads("[" * 480 + "]" * 480)
IDENTITY = f"{EVIL}{LINE}:17:0123456789ab"
pytestmark = pytest.mark.usefixtures("environment")


def job(jid: str, **more: Any) -> str:
    name = {"class": f"{EVIL}{LINE}", "wrapped": EVIL, "queue": f"{EVIL}{LINE}"}
    errors = {"error_class": EVIL, "error_message": f"{EVIL}{LINE}", "failed_at": 1.5}
    return json.dumps({**name, "args": [SECRETS, ARGUMENT], "jid": jid, **errors, **more})


def fill(redis: Redis) -> None:
    """Puts hostile text wherever Redis holds text."""
    keys, queue = Keys(), f"{EVIL}{LINE}"
    redis.sadd(keys.queues, queue, "default")
    redis.lpush(keys.queue(queue), job(JID, enqueued_at=1.5))
    redis.hset(keys.inflight(queue), f"{IDENTITY}/1", job(f"{EVIL}{LINE}", enqueued_at=1.5))
    redis.zadd(keys.dead, {job("1" * 24, retry_count=DEEP, failed_at=EVIL, error_class=DEEP): 1.5})
    redis.zadd(keys.retry, {job("2" * 24, created_at=True): 9e99})
    redis.hset(keys.control(queue), mapping={"limit": EVIL, "rate": EVIL, "burst": "1"})
    redis.sadd(keys.paused, queue)
    redis.sadd(keys.processes, IDENTITY)
    info = {"hostname": EVIL, "pid": 1, "started_at": 1.5, "tag": EVIL, "queues": [queue]}
    redis.hset(keys.process(IDENTITY), mapping={"info": json.dumps(info), "busy": "1"})
    redis.expire(keys.process(IDENTITY), 60)
    progress = {"done": 1e308, "total": 1e-308, "note": f"{EVIL}{LINE}", "at": 1.5}
    work = {"queue": queue, "payload": job(EVIL), "run_at": 1.5, "progress": progress}
    redis.hset(keys.work(IDENTITY), EVIL, json.dumps(work))
    entry = {"name": "nightly", "cron": "@daily", "job": json.loads(job(EVIL)), "origin": EVIL}
    redis.hset(keys.cron, mapping={"nightly": json.dumps(entry), EVIL: json.dumps(entry)})
    lines = [
        {"event": "missed", "at": 1.5, "why": f"{EVIL}{LINE}", "jid": EVIL},
        {"event": "enqueued", "at": 1.5, "tick": 1, "jid": f"{EVIL}{LINE}"},
    ]
    redis.rpush(keys.cron_runs("nightly"), *map(json.dumps, lines))
    redis.set("stat:processed", EVIL)
    redis.set(f"{{queue:{EVIL}2}}:inflight", "damaged")
    redis.sadd(keys.queues, f"{EVIL}2")
    now = time.gmtime()
    for minute in {now.tm_min, (now.tm_min + 1) % 60}:
        at = time.strftime(f"%Y-%m-%dT%H:{minute:02}:00Z", now)
        redis.hset(keys.marks(time.strftime("%Y%m%d", now)), at, EVIL)


COMMANDS = [
    ["running"],
    ["stuck"],
    ["find", JID],
    ["find", "1" * 24],
    ["find", "2" * 24],
    ["find", f"{EVIL}{LINE}"],
    ["find", EVIL],
    ["stats"],
    ["limits", "show"],
    ["limits", "reset"],
    ["limits", "set", f"{EVIL}{LINE}", "3"],
    ["pause", "defaul"],
    ["resume", f"{EVIL}{LINE}"],
    ["cron", "list"],
    ["cron", "next", "nightly"],
    ["cron", "history", "nightly"],
    ["cron", "history", EVIL],
    ["cron", "pause", "nightly"],
    ["cron", "remove", "nightly"],
    ["mark-deploy", EVIL],
    ["dead"],
    ["retries", "delete", "--all", "--dry-run"],
    ["jobs"],
    ["jobs", "show", f"{EVIL}{LINE}"],
    ["jobs", "move", "--all", "--to", f"{EVIL}{LINE}", "--yes"],
    ["queues"],
    ["queues", "show", f"{EVIL}{LINE}"],
    ["queues", "clear", f"{EVIL}{LINE}", "--yes"],
    ["processes"],
    ["processes", "show", EVIL],
    ["processes", "quiet", EVIL],
    ["retry", JID, EVIL],
    ["undo", EVIL],
]
WITH_JSON = ("running", "stuck", "find", "stats", "show", "list", "next", "history")
# They list, one object a line.
GROUPS = ("dead", "jobs", "queues", "processes")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: repr(" ".join(words))[:30])
def test_no_command_lets_it_through(
    redis: Redis, capfd: pytest.CaptureFixture[str], command: list[str]
) -> None:
    fill(redis)
    plain = command[0] in WITH_JSON or command[-1] in GROUPS or command[1] in WITH_JSON
    for words in [command, [*command, "--json"]] if plain else [command]:
        assert _run(words) in (0, 1, 2), words
        out, err = capfd.readouterr()
        for text in (out, err):
            assert [c for c in text if not c.isprintable() and c != "\n"] == [], (words, text)
            assert ARGUMENT not in text
            assert not [line for line in text.splitlines() if line.startswith("forged")], text
        if words[-1] == "--json" and out:
            objects(out)


@pytest.mark.parametrize("command", [["status"], ["status", "--json"], ["status", "--ready"]])
def test_no_text_of_an_app_that_cannot_boot(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: list[str],
) -> None:
    """The reason why a child is missing is the app's error."""
    from forkq.cli import tree  # noqa: PLC0415 - only here
    from forkq.config.load import load  # noqa: PLC0415 - only here

    class Master:
        pid = os.getpid()

        @staticmethod
        def send_signal(number: int) -> None:
            """It answers nothing."""

    monkeypatch.setattr(tree, "_master", lambda config: Master)
    monkeypatch.setenv("FORKQ_PIDFILE", str(tmp_path / "forkq.pid"))
    config = load(None, {}, os.environ, tmp_path)
    file = StatusFile(config, None)  # type: ignore[arg-type]  # it logs only what fails
    file.write("degraded", [], ready=False, missing=[f"default.1: {EVIL}"])
    assert _run(command) in (0, 1)
    shown = "".join(capfd.readouterr())
    assert "default.1: a" in shown
    assert [c for c in shown if not c.isprintable() and c != "\n"] == []
