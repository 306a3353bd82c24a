"""The whole web UI in a Django project: real servers, WSGI and ASGI, and who may do what."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from redis import Redis

from tests.support.documents import ROOT
from tests.support.server import Server

JOBS = "/ops/jobs"


class Site:
    """A running project."""

    def __init__(self, kind: str, redis: Server, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.contrib.django.web_site", kind, redis.url, str(folder)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = self._process.stdout.readline()
        assert line, self._process.stderr.read().decode()
        told = json.loads(line)
        self.sessions: dict[str, str] = told["sessions"]
        self._port: int = told["port"]

    def close(self) -> None:
        self._process.communicate(timeout=30)

    def ask(
        self, path: str, user: str = "", form: dict[str, str] | None = None, **headers: str
    ) -> tuple[http.client.HTTPResponse, http.client.HTTPConnection]:
        """The answer, whose body is not read yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        cookie = f"sessionid={self.sessions[user]}" if user else ""
        headers["Cookie"] = "; ".join(filter(None, (cookie, headers.get("Cookie", ""))))
        if form is None:
            connection.request("GET", path, headers=headers)
        else:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            connection.request("POST", path, urlencode(form), headers)
        return connection.getresponse(), connection

    def get(
        self, path: str, user: str = "", form: dict[str, str] | None = None, **headers: str
    ) -> tuple[int, str, http.client.HTTPMessage]:
        answer, connection = self.ask(path, user, form, **headers)
        try:
            return answer.status, answer.read().decode(), answer.headers
        finally:
            connection.close()


@pytest.fixture(params=["wsgi", "asgi"])
def site(request: pytest.FixtureRequest, redis_server: Server, tmp_path: Path) -> Iterator[Site]:
    made = Site(request.param, redis_server, tmp_path)
    yield made
    made.close()


def test_staff_have_the_web_ui(site: Site, redis: Redis) -> None:
    """One server for all that is looked at: its start takes most of the time."""
    redis.sadd("queues", "mail")
    redis.lpush("queue:mail", '{"class": "J", "args": [], "jid": "1", "queue": "mail"}')
    only_staff_see_it(site)
    permissions_decide_what_is_offered_and_done(site, redis)
    a_page_is_live(site, redis)
    the_index_of_the_admin_leads_there(site)


def only_staff_see_it(site: Site) -> None:
    for user in ("", "eve", "mallory"):
        status, text, headers = site.get(f"{JOBS}/", user)
        assert (status, text) == (302, "")
        assert headers["Location"].startswith("/admin/login/?next=/ops/jobs/")
    status, text, headers = site.get(f"{JOBS}/queues", "ada")
    assert status == 200
    assert f'href="{JOBS}/queue?name=mail"' in text
    assert "script-src 'nonce-" in headers["Content-Security-Policy"]
    [sheet] = re.findall(rf'href="({JOBS}/static/[^"]*\.css[^"]*)"', text)
    assert site.get(sheet, "ada")[0] == 200
    assert site.get(f"{JOBS}/", "ada", Host="evil.example")[0] == 400
    assert site.get(f"{JOBS}/nothing", "ada")[0] == 404


def permissions_decide_what_is_offered_and_done(site: Site, redis: Redis) -> None:
    page = f"{JOBS}/queue?name=mail"
    _, of_ada, _ = site.get(page, "ada")
    _, of_bob, headers = site.get(page, "bob")
    assert "/queue/pause" in of_bob
    assert "/queue/pause" in of_ada
    assert "/queue/clear" in of_ada
    assert "/queue/clear" not in of_bob
    [token] = set(re.findall(r'name="csrf" value="([^"]+)"', of_bob))
    form = {"csrf": token, "name": "mail", "confirmed": "1"}
    cookie = headers["Set-Cookie"].partition(";")[0]
    assert site.get(f"{JOBS}/queue/pause", "bob", form)[0] == 403  # without the cookie
    assert site.get(f"{JOBS}/queue/clear", "bob", form, Cookie=cookie)[0] == 403
    status, _, headers = site.get(f"{JOBS}/queue/pause", "bob", form, Cookie=cookie)
    assert (status, headers["Location"]) == (303, page)
    assert redis.llen("queue:mail") == 1
    assert "Resume" in site.get(page, "ada")[1]


def a_page_is_live(site: Site, redis: Redis) -> None:
    """The event stream goes on, and says what has changed."""
    answer, connection = site.ask(f"{JOBS}/queues", "ada", Accept="text/event-stream")
    try:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        first = data_of(answer)
        assert first
        redis.lpush("queue:mail", '{"class": "J", "args": [], "jid": "2", "queue": "mail"}')
        seen = ""
        while ">2<" not in seen:
            seen = data_of(answer)
    finally:
        connection.close()


def data_of(answer: http.client.HTTPResponse) -> str:
    """The next message of a stream; the connection's time-out ends the wait."""
    while True:
        line = answer.readline().decode()
        assert line, "the stream has ended"
        if line.startswith("data: "):
            return line


def the_index_of_the_admin_leads_there(site: Site) -> None:
    assert "Web UI" in site.get("/admin/", "ada")[1]
    assert 'href="/admin/forkq/webui/"' in site.get("/admin/", "bob")[1]
    status, _, headers = site.get("/admin/forkq/webui/", "bob")
    assert (status, headers["Location"]) == (302, f"{JOBS}/")


@pytest.mark.usefixtures("project")
def test_there_is_a_permission_for_each_action() -> None:
    from forkq.contrib.django.models import ACTIONS  # noqa: PLC0415 - Django must be set up

    text = (ROOT / "docs" / "web.md").read_text()
    [listed] = re.findall(r"The actions of queues(.*?)What a user may", text, re.DOTALL)
    assert sorted(re.findall("`([^`]+)`", listed)) == sorted(ACTIONS)
