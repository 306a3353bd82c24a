"""The password at the door: wrong ones delay no browser whose password was right."""

from __future__ import annotations

import base64
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest
from starlette.requests import HTTPConnection

from forkq.web import WebSettings, create_app, sign_in
from forkq.web.settings import Authenticate
from forkq.web.sign_in import BasicPassword
from tests.web.shared import client_of

STATIC = "/static/forkq.css"
RIGHT = "right"
PATIENCE = 20


class Hashing:
    """In place of the hash: it counts, and can be held up."""

    def __init__(self) -> None:
        self.passwords: list[str] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def verify(self, password: str, hashed: str) -> bool:
        self.passwords.append(password)
        assert self.go_on.wait(PATIENCE)
        return password == RIGHT


@pytest.fixture
def hashing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hashing]:
    made = Hashing()
    monkeypatch.setattr(sign_in, "_PERIOD", 3600)  # a machine may stand still
    monkeypatch.setattr(sign_in, "verify", made.verify)
    yield made
    made.go_on.set()


class Door:
    """The web UI behind a password, asked in this event loop."""

    def __init__(self, authenticate: Authenticate | None = None) -> None:
        self.app = create_app(WebSettings(authenticate=authenticate or BasicPassword("")))

    async def ask(self, password: str, address: str = "192.0.2.1", user: str = "ann") -> int:
        """The status of the answer."""
        both = base64.b64encode(f"{user}:{password}".encode())
        scope = {
            "type": "http", "method": "GET", "path": STATIC, "raw_path": STATIC.encode(),
            "query_string": b"", "client": (address, 1), "server": ("localhost", 80),
            "scheme": "http", "http_version": "1.1", "root_path": "",
            "headers": [(b"host", b"localhost"), (b"authorization", b"Basic " + both)],
        }  # fmt: skip
        sent: list[Any] = []

        async def receive() -> Any:
            await anyio.sleep_forever()

        async def send(message: Any) -> None:
            sent.append(message)

        with anyio.fail_after(PATIENCE):
            await self.app(scope, receive, send)
        return int(sent[0]["status"])


def run(test: Callable[[Door], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(Door())

    anyio.run(main)


def test_a_flood_of_wrong_passwords_delays_no_good_session(hashing: Hashing) -> None:
    async def flooded(door: Door) -> None:
        assert await door.ask(RIGHT) == 200
        hashing.go_on.clear()  # from now on a hash takes for ever
        async with anyio.create_task_group() as flood:
            for number in range(40):
                flood.start_soon(door.ask, f"wrong {number}", f"198.51.100.{number}")
            await anyio.wait_all_tasks_blocked()
            assert await door.ask(RIGHT) == 200
            assert await door.ask("another", "203.0.113.1") == 429  # it does not wait for them
            hashing.go_on.set()
        assert len(hashing.passwords) <= 1 + sign_in._MOST_WAITING + 1

    run(flooded)


def test_an_address_has_few_tries_a_minute(hashing: Hashing) -> None:
    async def tried(door: Door) -> None:
        statuses = [await door.ask(f"wrong {n}", user=f"user {n}") for n in range(30)]
        assert statuses == [401] * sign_in._TRIES + [429] * (30 - sign_in._TRIES)
        assert len(hashing.passwords) == sign_in._TRIES
        assert await door.ask(RIGHT) == 429
        assert await door.ask(RIGHT, "192.0.2.2") == 200

    run(tried)


def test_the_addresses_of_one_ipv6_network_are_one(hashing: Hashing) -> None:
    async def tried(door: Door) -> None:
        asked = [await door.ask(f"wrong {n}", f"2001:db8::{n:x}") for n in range(30)]
        assert asked[-1] == 429
        assert await door.ask(RIGHT, "2001:db8:0:1::1") == 200

    run(tried)


def test_a_wrong_password_that_is_sent_again_costs_nothing(hashing: Hashing) -> None:
    """A live page of a browser that knows the old password comes back every few seconds."""

    async def repeated(door: Door) -> None:
        assert {await door.ask("old") for _ in range(30)} == {401}
        assert hashing.passwords == ["old"]
        assert await door.ask(RIGHT) == 200

    run(repeated)


def test_requests_with_one_password_share_its_hash(hashing: Hashing) -> None:
    async def shared(door: Door) -> None:
        found: list[int] = []

        async def ask() -> None:
            found.append(await door.ask(RIGHT))

        async with anyio.create_task_group() as browser:
            for _ in range(20):
                browser.start_soon(ask)
        assert found == [200] * 20
        assert hashing.passwords == [RIGHT]

    run(shared)


def test_a_right_password_is_forgotten_when_it_is_not_used() -> None:
    now = [1000.0]
    remembered = sign_in.Remembered(lambda: now[0])
    remembered.add(b"mark")
    for _ in range(3):
        now[0] += sign_in._REMEMBERED - 1
        assert remembered.recall(b"mark")
    now[0] += sign_in._REMEMBERED + 1
    assert not remembered.recall(b"mark")


def test_what_is_remembered_is_bounded() -> None:
    remembered, tries = sign_in.Remembered(), sign_in.Tries()
    for number in range(sign_in._MOST * 2):
        remembered.add(str(number).encode())
        tries.count(str(number))
    assert len(remembered._until) == len(tries._of) == sign_in._MOST
    assert remembered.recall(str(sign_in._MOST * 2 - 1).encode())


def test_a_refusal_says_when_to_come_again(hashing: Hashing) -> None:
    web = client_of(WebSettings(authenticate=BasicPassword("")))
    for number in range(sign_in._TRIES + 1):
        answer = web.get(STATIC, auth=("ann", f"wrong {number}"))
    assert answer.status_code == 429
    assert 0 < int(answer.headers["retry-after"]) <= 3600


def test_an_authenticate_may_be_async() -> None:
    async def user_of(request: HTTPConnection) -> str | None:
        await anyio.sleep(0)
        return "ann" if "authorization" in request.headers else None

    async def main() -> None:
        assert await Door(user_of).ask("any") == 200

    anyio.run(main)
    assert client_of(WebSettings(authenticate=user_of)).get(STATIC).status_code == 401
