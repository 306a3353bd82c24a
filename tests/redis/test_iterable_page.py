"""docs/iterable.md: its first example, stopped and failed on its way, sends one mail to each."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import iteration, middleware, registry
from tests.redis.in_process_child import InProcessChild
from tests.support.documents import ROOT, snippets
from tests.support.server import Server
from tests.support.waiting import wait_until

FIRST, SECOND, *_ = [each.text for each in snippets(ROOT / "docs" / "iterable.md", "python")]
MAILS = ["ann", "bob", "cid"]


@pytest.fixture
def page(
    client: forkq.Client, redis: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> dict[str, Any]:
    """The names of the page, whose first job is pushed."""
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "shop"}
    exec(FIRST, names)  # noqa: S102 - a page of ours
    return names


def run(server: Server, over: Callable[[], Any]) -> None:
    with InProcessChild(server.url, concurrency=1):
        wait_until(over, what="the job")


def gone(redis: Redis) -> bool:
    return not redis.exists("queue:default", "{queue:default}:inflight")


def test_a_stopped_mailing_goes_on(
    page: dict[str, Any],
    redis: Redis,
    redis_server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = count()
    monkeypatch.setattr(iteration, "stopping", lambda: next(told) == 1)
    run(redis_server, lambda: gone(redis))
    *sent, last = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in sent] == [f"{name}@example.com" for name in MAILS]
    assert last == "all customers have their mail"


def test_a_mail_that_is_sent_again_has_the_same_key(
    page: dict[str, Any], redis: Redis, redis_server: Server
) -> None:
    sent: list[tuple[str, str]] = []

    def fail_once(to: str, key: str) -> None:
        sent.append((to, key))
        if len(sent) == 2:
            raise OSError

    page["send"] = fail_once
    run(redis_server, lambda: redis.exists("retry"))
    found: Any = redis.zrange("retry", 0, -1)
    redis.delete("retry")
    redis.lpush("queue:default", *found)
    run(redis_server, lambda: gone(redis))
    assert [to[:3] for to, _ in sent] == ["ann", "bob", "bob", "cid"]
    assert sent[1] == sent[2]
    assert len({key for _, key in sent}) == 3


def test_the_generator_of_the_page(
    page: dict[str, Any], redis: Redis, redis_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    redis.delete("queue:default")
    exec(SECOND, page)  # noqa: S102
    run(redis_server, lambda: gone(redis))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("item")]
    assert lines == [f"item {number}" for number in range(1000)]
