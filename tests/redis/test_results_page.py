"""docs/results.md: its example waits for a job that a child runs."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import registry
from tests.redis.in_process_child import InProcessChild
from tests.support.documents import ROOT, snippets
from tests.support.server import Server


def test_the_example_of_the_page(
    client: Any, redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    page: dict[str, Any] = {"__name__": "shop"}
    for snippet in snippets(ROOT / "docs" / "results.md", "python"):
        exec(snippet.text, page)  # noqa: S102 - a page of ours
    status, total = page["status"], page["total"]
    jid = total.perform_async([1, 2])
    assert status(jid) == {"state": "waits or runs"}
    assert status("gone") == {"state": "unknown"}
    with InProcessChild(redis_server.url):
        assert page["checkout"]([3, 4]) == 7
        assert total.result(jid, timeout=20) == 3
        broken = total.set(retry=0).perform_async(["x"])
        with pytest.raises(forkq.JobFailed):
            total.result(broken, timeout=20)
    assert status(jid) == {"state": "done", "value": 3}
    assert status(broken)["state"] == "dead"
    assert "unsupported operand" in status(broken)["why"]
