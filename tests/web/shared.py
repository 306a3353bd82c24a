"""What several tests of the web UI do."""

from __future__ import annotations

from typing import Any

from starlette.testclient import TestClient

from forkq.web import WebSettings, create_app

# What a visitor may find in a payload: each would be seen if it was not escaped.
HOSTILE = "<script>document.title='hacked'</script>\"'><img src=x onerror=alert(1)>{{7-7}}"


def client_of(settings: WebSettings | None = None, **options: Any) -> TestClient:
    """The web UI without a network, asked from its own host."""
    given = {"base_url": "http://localhost", "client": ("127.0.0.1", 1), **options}
    return TestClient(create_app(settings), follow_redirects=False, **given)


def token(web: TestClient) -> str:
    """The CSRF token of the forms that this browser gets."""
    if "forkq_csrf" not in web.cookies:
        web.get("/queues")
    return str(web.cookies["forkq_csrf"])


def act(web: TestClient, path: str, **fields: str) -> Any:
    """Sends a form as a page of the UI does."""
    headers = {"Sec-Fetch-Site": "same-origin"}
    return web.post(path, data={"csrf": token(web), **fields}, headers=headers)


def confirm(web: TestClient, path: str, **fields: str) -> Any:
    """Sends a form, reads the question, and says yes with the fields that the page has."""
    asked = act(web, path, **fields)
    assert asked.status_code == 200, asked.text
    return act(web, path, **fields, confirmed="yes")
