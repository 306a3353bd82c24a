"""The page of figures in Django's admin."""

from __future__ import annotations

import json
import subprocess
import sys

from redis import Redis

from tests.support.documents import ROOT
from tests.support.server import Server
from tests.support.waiting import within


def test_staff_see_the_queues_and_others_are_asked_to_log_in(
    redis: Redis, redis_server: Server
) -> None:
    hostile = "<script>alert(1)</script>"
    redis.sadd("queues", "mail", hostile)
    redis.lpush("queue:mail", *('{"class": "J", "args": ["secret"], "jid": "1"}',) * 3)
    done = subprocess.run(
        [sys.executable, "-m", "tests.contrib.django.admin_site", redis_server.url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=within(60),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    visitor, staff, without_redis = json.loads(done.stdout.splitlines()[-1])
    assert visitor[0] == 302
    assert staff[0] == 200
    assert "3 queued" in staff[1]
    assert '<th scope="row">mail</th><td>3</td>' in staff[1]
    assert hostile not in staff[1]
    assert "&lt;script&gt;alert(1)" in staff[1]
    assert "secret" not in staff[1]
    assert without_redis[0] == 503
    assert "127.0.0.1:1" in without_redis[1]
