"""A table of forkq/screens is seen in a command, in `forkq top` and in the web UI."""

from __future__ import annotations

import json
import time

import pytest
from redis import Redis

from forkq import default_client
from forkq.cli.main import _run
from forkq.store.deploys import mark
from tests.support.server import Server
from tests.top.data import process
from tests.top.screen import Screen, drive
from tests.web.shared import client_of


def test_the_deploy_of_a_process_is_seen_in_all_three(
    client: Redis, redis_server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    """The last one before it started, 500 s ago. It is one column of screens/processes.py."""
    process(client)
    pushes = default_client.default()
    with pushes.connection() as connection:
        for label, ago in (("older", 3000), ("v12 of the shop", 1000), ("after-it", 60)):
            mark(connection, pushes.keys, label, time.time() - ago)

    async def scenario(screen: Screen) -> None:
        await screen.press("3")
        await screen.shows("DEPLOY", "v12 of the shop")
        assert "after-it" not in screen.text()

    drive(scenario, size=(120, 24))
    with client_of() as web:
        page = web.get("/busy").text
    assert '<td data-label="Deploy">v12 of the shop</td>' in page
    assert "after-it" not in page
    assert _run(["processes", "--redis", redis_server.url]) == 0
    titles, row = capfd.readouterr().out.splitlines()
    at = titles.index("DEPLOY")
    assert row[at:].startswith("v12 of the shop  ")
    assert _run(["processes", "--json", "--redis", redis_server.url]) == 0
    assert json.loads(capfd.readouterr().out)["deploy"] == "v12 of the shop"
