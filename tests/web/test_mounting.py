"""The web UI below a path of another app."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from a2wsgi import ASGIMiddleware
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

import forkq
from forkq.web import create_app


def starlette_app() -> Any:
    return Starlette(routes=[Mount("/ops/jobs", create_app())])


def fastapi_app() -> Any:
    app = FastAPI()
    app.mount("/ops/jobs", create_app())
    return app


def plain_asgi_app() -> Any:
    """As docs/web.md has it for Django."""
    web, rest = create_app(), Starlette()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/ops/jobs/"):
            await web({**scope, "root_path": "/ops/jobs"}, receive, send)
        else:
            await rest(scope, receive, send)

    return application


@pytest.fixture(params=[starlette_app, fastapi_app, plain_asgi_app])
def mounted(request: pytest.FixtureRequest, api_client: None) -> Iterator[TestClient]:
    app = request.param()
    options: Any = {"base_url": "http://localhost", "client": ("127.0.0.1", 1)}
    with TestClient(app, follow_redirects=False, **options) as client:
        yield client


def test_every_link_of_a_page_stays_below_the_path(mounted: TestClient) -> None:
    forkq.default_client.default().push({"class": "Mail", "args": []})
    html = mounted.get("/ops/jobs/queues").text
    links = re.findall(r'(?:href|src|action)="([^"#]*)"', html)
    assert len(links) > 8
    assert [link for link in links if not link.startswith("/ops/jobs/")] == []
    assert '<a href="/ops/jobs/queues" data-key="q" aria-current="page">' in html


def test_its_files_are_served_there(mounted: TestClient) -> None:
    assert mounted.get("/ops/jobs/static/forkq.css").status_code == 200


def test_an_action_acts_and_returns_there(mounted: TestClient) -> None:
    forkq.default_client.default().push({"class": "Mail", "args": []})
    mounted.get("/ops/jobs/queues")
    token = mounted.cookies["forkq_csrf"]
    answer = mounted.post("/ops/jobs/queue/pause", data={"name": "default", "csrf": token})
    assert answer.headers["location"] == "/ops/jobs/queue?name=default"
    assert forkq.api.Queue("default").paused


@pytest.fixture(scope="module")
def wsgi() -> Any:
    """Made once: the adapter's thread stays."""
    app: Any = create_app()  # a2wsgi has types of its own for ASGI
    return ASGIMiddleware(app)


def test_a_wsgi_server_serves_it_through_an_adapter(wsgi: Any, api_client: None) -> None:
    answer: dict[str, Any] = {}
    environ = {
        "REQUEST_METHOD": "GET",
        "SCRIPT_NAME": "/ops/jobs",
        "PATH_INFO": "/queues",
        "QUERY_STRING": "",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": "localhost",
        "REMOTE_ADDR": "127.0.0.1",
        "REMOTE_PORT": "1",
        "wsgi.url_scheme": "http",
        "wsgi.input": None,
    }

    def start_response(status: str, headers: Any, exc_info: Any = None) -> None:
        answer.update(status=status, headers=dict(headers))

    html = b"".join(wsgi(environ, start_response)).decode()
    assert answer["status"].startswith("200")
    assert 'href="/ops/jobs/queues"' in html
