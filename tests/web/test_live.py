"""Live pages: how many are open at once, and for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from starlette.requests import HTTPConnection

from forkq.errors import ServerUnavailable
from forkq.web import WebSettings, create_app, live
from forkq.web.visit import View
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("api_client")
FEW = 3
IN_ALL = 5


@pytest.fixture(autouse=True)
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_MOST_OF_ONE", FEW)
    monkeypatch.setattr(live, "_MOST", IN_ALL)


async def user_of(request: HTTPConnection) -> str:
    return request.headers["x-user"]


class Browsers:
    """They look at live pages, in this event loop."""

    def __init__(self, tasks: TaskGroup) -> None:
        self.app = create_app(WebSettings(authenticate=user_of))
        self._tasks = tasks

    async def open(self, user: str, count: int) -> list[anyio.Event]:
        """Asks for so many at the same time; what to set to end those that are shown."""
        answers = [self._one(user) for _ in range(count)]
        return [gone for gone in [await answer() for answer in answers] if gone is not None]

    def _one(self, user: str) -> Callable[[], Any]:
        gone, answered, statuses = anyio.Event(), anyio.Event(), list[int]()
        scope = {
            "type": "http", "method": "GET", "path": "/queues", "raw_path": b"/queues",
            "query_string": b"", "client": ("127.0.0.1", 1), "server": ("localhost", 80),
            "scheme": "http", "http_version": "1.1", "root_path": "",
            "headers": [
                (b"host", b"localhost"), (b"accept", b"text/event-stream"),
                (b"x-user", user.encode()),
            ],
        }  # fmt: skip

        async def receive() -> Any:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            statuses.append(message.get("status", 0))
            answered.set()

        async def shown() -> anyio.Event | None:
            with anyio.fail_after(PATIENCE):
                await answered.wait()
            assert statuses[0] in {200, 503}
            return gone if statuses[0] == 200 else None

        self._tasks.start_soon(self.app, scope, receive, send)
        return shown


def run(test: Callable[[Browsers], Any]) -> None:
    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            await test(Browsers(tasks))
            tasks.cancel_scope.cancel()

    anyio.run(main)


def test_one_user_leaves_room_for_others() -> None:
    async def looked_at(browsers: Browsers) -> None:
        assert len(await browsers.open("ann", 2 * IN_ALL)) == FEW
        assert len(await browsers.open("bob", 1)) == 1

    run(looked_at)


def test_a_burst_does_not_pass_the_bound() -> None:
    async def looked_at(browsers: Browsers) -> None:
        shown = [await browsers.open(user, FEW) for user in ("ann", "bob", "eve")]
        assert sum(map(len, shown)) == IN_ALL

    run(looked_at)


def test_one_that_ends_makes_room() -> None:
    async def looked_at(browsers: Browsers) -> None:
        for _ in range(3):
            shown = await browsers.open("ann", FEW)
            assert len(shown) == FEW
            for gone in shown:
                gone.set()
            with anyio.fail_after(PATIENCE):
                while browsers.app.state.streams._open:
                    await anyio.sleep(0.01)

    run(looked_at)


def test_what_was_held_up_is_live_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that took long is followed by a long pause only if the one before was slow, too, and
    did not fail: after an outage the page looks again at once."""
    clock, pauses, takes = Clock(monkeypatch), list[float](), iter([0.1, 7, 0.1, -5, -5, 5, 6])

    async def run_in_thread(_make: Callable[[], Any]) -> dict[str, str]:
        takes_now = next(takes)
        clock.now += abs(takes_now)
        if takes_now < 0:
            raise ServerUnavailable("no <answer>")
        return {"live": f"{clock.now}"}

    async def sleep(seconds: float) -> None:
        clock.now += seconds
        pauses.append(round(seconds, 6))

    visit: Any = SimpleNamespace(worker=SimpleNamespace(run=run_in_thread))
    monkeypatch.setattr(anyio, "sleep", sleep)

    async def heard() -> list[str]:
        news, page = live._changes(visit, lambda _: View("")), list[str]()
        while len(page) < 7 + 49 // 5:
            page.append((await news.__anext__())["lost"])
        return page

    lost = asyncio.run(heard())
    assert pauses[:6] == [1, 1, 1, 1, 1, 1]
    assert sum(pauses[6:]) <= 50
    assert lost[:6] == [""] * 3 + ["not live: no &lt;answer&gt;"] * 2 + [""]


class Clock:
    """Time that passes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: self.now))
