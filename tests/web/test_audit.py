"""The audit log has what an operator needs to take an action back."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from redis import Redis
from starlette.testclient import TestClient

from forkq import api
from forkq.errors import ServerUnavailable
from tests.web.shared import confirm


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "forkq.web.audit")


def dead(redis: Redis) -> None:
    for number in range(3):
        redis.zadd("dead", {json.dumps({"class": "Mail", "args": [], "jid": str(number)}): 1.5})


def line(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    found: Any
    [found] = [record.msg for record in caplog.records if record.name == "forkq.web.audit"]
    return dict(found)


def test_a_delete_leaves_its_token(
    web: TestClient, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    dead(redis)
    confirm(web, "/dead/delete", scope="all")
    found = line(caplog)
    token = found.pop("undo")
    assert found == {
        "event": "web action", "user": "(no authentication)", "action": "delete jobs",
        "result": "Deleted 3 jobs of the dead set.", "count": 3, "jids": ["0", "1", "2"],
    }  # fmt: skip
    assert api.undo(token).done == 3


def test_an_action_that_loses_redis_leaves_its_token(
    web: TestClient, redis: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead(redis)
    really = api.DeadSet.delete_all

    def lose(jobs: api.DeadSet, *given: Any, **more: Any) -> None:
        error = ServerUnavailable("Redis is away\nforged")
        error.outcome = really(jobs, *given, **more)
        raise error

    monkeypatch.setattr(api.DeadSet, "delete_all", lose)
    assert confirm(web, "/dead/delete", scope="all").status_code == 503
    found = line(caplog)
    assert found["event"] == "web action failed"
    assert found["error"] == r"Redis is away\nforged"
    assert found["count"] == 3
    assert api.undo(found["undo"]).done == 3
