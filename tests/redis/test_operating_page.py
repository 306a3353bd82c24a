"""docs/operating.md: its commands, run one after the other, print what the page shows."""

from __future__ import annotations

import json
import re
import shlex
import time
from typing import Any

import pytest
from redis import Redis

from forkq import default_client
from forkq.cli.main import _run
from tests.support.documents import ROOT, snippets
from tests.support.printed import assert_shown

_TOKEN = re.compile(r"(?<=undo )[0-9a-f]{16}")
_HOUR = 3600


def job(name: str, jid: str, queue: str, hours: int, **more: Any) -> tuple[str, float]:
    past = time.time() - hours * _HOUR - 60
    known = {"class": name, "args": [7], "jid": jid, "queue": queue, "retry": True}
    times = {"created_at": past, "enqueued_at": past}
    failed = {"failed_at": past, "retried_at": past, **more} if more else {}
    return json.dumps({**known, **times, **failed}), past


def failed(kind: str, message: str, count: int) -> dict[str, Any]:
    return {"error_class": kind, "error_message": message, "retry_count": count}


def fill(redis: Redis) -> None:
    """The jobs of the page."""
    closed = failed("smtplib.SMTPServerDisconnected", "Connection unexpectedly closed", 25)
    missing = failed("FileNotFoundError", "invoices/7.txt", 0)
    dead = [
        job("shop.Invoice", "90cd5e7f12ab34d86f7e2c15", "default", 5, **missing),
        job("shop.Receipt", "4a7be0d31c58f2969e04d1b7", "mail", 5, **closed),
        job("shop.Receipt", "b8e1c2a7d94f30665c1f7a02", "mail", 3, **closed),
    ]
    redis.zadd("dead", {text: at + number / 10 for number, (text, at) in enumerate(dead)})
    redis.zadd("retry", dict([job("shop.Newsletter", "5" * 24, "mail", 1, **missing)]))
    redis.lpush("queue:mial", job("shop.Welcome", "d27f6c0a8be14935f0b6ea71", "mial", 4)[0])
    redis.sadd("queues", "mial", "mail", "default")


def fill_held(redis: Redis) -> None:
    """The class of the page that is held. Its jobs would be in the lists of jobs, too."""
    redis.hset("forkq:classes:held", "shop.Thumbnail", f"{time.time() - 4 * 60 - 10:.0f} 12")
    redis.lpush(
        "{queue:default}:suspects", *(job("shop.Thumbnail", "1" * 24, "default", 1)[0],) * 184
    )
    redis.sadd("forkq:suspects", "default")


@pytest.mark.usefixtures("environment")
def test_the_page_shows_what_is_printed(redis: Redis, capfd: pytest.CaptureFixture[str]) -> None:
    fill(redis)
    shown = token = ""
    checked = 0
    for snippet in snippets(ROOT / "docs" / "operating.md", "sh", "text"):
        if snippet.language == "text":
            assert_shown(snippet.text, _TOKEN.sub("TOKEN", shown))
            checked += 1
            continue
        words = shlex.split(snippet.text.replace("TOKEN", token))
        if "classes" in words:
            redis.delete("{queue:default}:suspects")
            fill_held(redis)
        assert (words[0], _run(words[1:])) == ("forkq", 0), snippet.place
        default_client.default().close()
        shown = capfd.readouterr().out
        token = "".join(_TOKEN.findall(shown)) or token
    assert checked == 12
