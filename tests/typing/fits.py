"""Calls that fit: this file must pass mypy --strict. It is never run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import forkq


class Thumbnail(forkq.Job, queue="images", retry=5):
    """A job class."""

    def perform(self, path: str, width: int = 100) -> None:
        """Uses what a running job knows of itself."""
        name: str = f"{self.jid} {self.queue} {path} {width}"
        count: int | None = self.retry_count
        assert name
        assert count != 3
        assert not forkq.stopping()
        assert forkq.current_job().jid

    def retry_in(self, count: int, exception: BaseException, job: forkq.Payload) -> object:
        """Seconds, or a verdict."""
        return forkq.KILL if count > 3 else 60 * count


@forkq.job(queue="mail", name="WelcomeMail")
def welcome(user_id: int, subject: str = "hello") -> bool:
    """A function job."""
    return bool(user_id and subject)


@forkq.every("0 9 * * *", name="morning", args=["a.png", 100])
@forkq.every("0 17 * * *", tz="Europe/Berlin", name="evening", args=("b.png",), missed=3)
class Poster(forkq.Job):
    """A periodic job class, twice."""

    def perform(self, path: str, width: int = 100) -> None:
        """Does nothing."""


@forkq.every("*/5 * * * *", queue="low", overlap="skip", missed="once", jitter=2.5, enabled=False)
@forkq.job
def tidy(days: int = 7) -> bool:
    """A periodic function, still callable and a job."""
    return days > 1


@forkq.job
def sweep() -> None:
    """A job without parameters."""


@forkq.job(retry=2, tags=["a"], hard_timeout=60)
def add(*numbers: int) -> None:
    """A job with any number of parameters."""


@forkq.job
def resize(path: str, width: int, *, quiet: bool = False) -> None:
    """A parameter that only a direct call can give."""


class Crop(forkq.Job):
    """The same in a class."""

    def perform(self, path: str, *, quiet: bool = False) -> None:
        """Does nothing."""


def push() -> list[str]:
    """Every way of pushing, and the types that come back."""
    at = datetime.now(timezone.utc) + timedelta(hours=1)
    jids: list[str] = [
        Thumbnail.perform_async("a.png", 200),
        Thumbnail.perform_async("a.png", width=200),
        Thumbnail.perform_async("a.png"),
        Thumbnail.perform_async_on_commit("a.png", 200),
        Thumbnail.perform_in(60, "a.png", 200),
        Thumbnail.perform_in(timedelta(minutes=1), "a.png"),
        Thumbnail.perform_at(at, "a.png", 200),
        Thumbnail.set(queue="low", retry=False).perform_async("a.png", 200),
        Thumbnail.set(queue="low").perform_in(60, "a.png"),
        welcome.perform_async(7),
        welcome.perform_async_on_commit(7),
        welcome.perform_in(1.5, 7, subject="hi"),
        welcome.perform_at(2e9, 7),
        welcome.set(retry=3).perform_async(7, "hi"),
        Poster.perform_async("a.png", 200),
        tidy.perform_in(60, 7),
    ]
    jids += Thumbnail.perform_bulk([("a.png", 200), ("b.png",)], at=at)
    jids += Thumbnail.perform_bulk([[name, 200] for name in ("a.png", "b.png")])
    jids += welcome.perform_bulk((number,) for number in range(3))
    jids += Thumbnail.set(retry=False).perform_bulk([("a.png", 200)])
    jids += sweep.perform_bulk([(), ()])
    jids += add.perform_bulk([(1, 2), (3,)])
    jids += resize.perform_bulk([("a.png", 200)])
    jids += Crop.perform_bulk([("a.png",), ["b.png"]])
    jids += Crop.set(queue="low").perform_bulk([("a.png",)])
    jids.append(Thumbnail.set({"tenant": 7}, queue="low", timeout=2.5).perform_async("a.png"))
    called: bool = welcome(7) or tidy()
    jid: str | None = forkq.Client("redis://localhost").push({"class": "HardJob", "args": [1]})
    return [*jids, str(called), jid or ""]


@forkq.job
async def fetch(url: str, *, tries: int = 3) -> int:
    """A coroutine."""
    return tries


class Fetch(forkq.Job):
    """A coroutine in a class."""

    async def perform(self, url: str) -> None: ...


async def fetch_here() -> int:
    """A call is the coroutine, a push is a jid."""
    jid: str = fetch.perform_async("https://example.org", tries=1)
    jid += Fetch.perform_async("https://example.org")
    await Fetch().perform(jid)
    return await fetch("https://example.org")


@forkq.middleware.server.append
def around(job: forkq.Payload) -> Iterator[None]:
    """Middleware in the form for all jobs."""
    yield


@forkq.on("shutdown")
async def closed() -> None:
    """A lifecycle handler that is a coroutine."""


@forkq.middleware.client.append
def tenant(job: forkq.Payload, call: forkq.NextCall) -> Any:
    """Middleware."""
    job["tenant"] = 7
    return call()


@forkq.on("startup")
def started() -> None:
    """A lifecycle handler."""


@forkq.on_death
def died(job: forkq.Payload, error: BaseException) -> None:
    """A death handler."""


@forkq.on_error
def failed(error: BaseException, context: forkq.ErrorContext) -> None:
    """An error handler."""
    running: forkq.JobContext = forkq.current_job()
    assert running.jid


arounds: tuple[forkq.AroundMiddleware, ...] = (around,)
handlers: tuple[forkq.Middleware, forkq.DeathHandler, forkq.ErrorHandler] = (tenant, died, failed)
hooks: tuple[forkq.RetryIn, forkq.Exhausted, forkq.Event] = (
    lambda count, error, job: 60 * count,
    lambda job, error: forkq.DISCARD,
    "startup",
)


@dataclass
class Order:
    """What typed jobs are about."""

    at: datetime
    price: Decimal


@forkq.job(typed=True, result_ttl=60)
def ship(order: Order, express: bool = False) -> Order:
    """A typed job."""
    return order if express else Order(order.at, order.price)


class Bill(forkq.Job, typed=True):
    """A typed job class."""

    def perform(self, order: Order) -> None:
        """Does nothing."""


def push_typed(order: Order) -> None:
    """Values of the declared types, not their JSON."""
    ship.perform_async(order)
    ship.perform_bulk([(order, True)])
    Bill.perform_in(60, order)
    flow = forkq.Flow("orders", ship.s(order) | Bill.s(forkq.BEFORE))
    flow.push()
