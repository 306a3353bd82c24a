"""The shards of ``[[redis.shards]]``: which there are, and which one the API is about.

Each shard has queues, sets, processes and counts of its own. A ``Queue`` is looked for on its own
shard; all else is about the default shard, or about that of ``on_shard``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isfunction
from typing import Any, TypeVar

from ..default_client import default
from ..errors import ConfigError, ServerUnavailable
from ..sharded_client import ShardedClient, chosen, on

C = TypeVar("C", bound=type)
F = TypeVar("F")


def shards() -> list[str]:
    """The names of all shards, the default first; none if the configuration has no shards."""
    client = default()
    return [one.name for one in client.shards] if isinstance(client, ShardedClient) else []


@contextmanager
def on_shard(name: str) -> Iterator[None]:
    """Within the block, the API is about this shard, queues too. Jobs are pushed to the shard of
    their queue all the same. Raises ConfigError if there is none of that name."""
    if name not in shards():
        names = ", ".join(shards()) or "none"
        raise ConfigError(f'there is no shard "{name}" in [[redis.shards]]; there is {names}')
    with on(name):
        yield


def shard_of(queue: str) -> str:
    """The name of the shard that jobs of ``queue`` are pushed to; "" if there are no shards."""
    client = default()
    return client.shard_of(queue) if isinstance(client, ShardedClient) else ""


def searched() -> list[str]:
    """Where to look for a job of which only the jid is known: the chosen shard, else all of them;
    "" is the only Redis."""
    return [chosen()] if chosen() else shards() or [""]


def first_found(look: Callable[[], F | None]) -> F | None:
    """What ``look`` finds on the first shard where it finds something. One that is down hides no
    other one; but if none of the others has it, its ServerUnavailable is raised."""
    down: ServerUnavailable | None = None
    for shard in searched():
        try:
            with on(shard):
                found = look()
        except ServerUnavailable as error:
            down = down or error
            continue
        if found is not None:
            return found
    if down is not None:
        raise down
    return None


@contextmanager
def on_shard_of(queue: str) -> Iterator[None]:
    """Within the block, the API is about the shard of ``queue``, unless a block around it has
    chosen one."""
    with on(chosen() or shard_of(queue)):
        yield


def refuse_other_shard(queue: str) -> None:
    """Raises ConfigError if ``queue`` is on another shard than the API is about: no step moves a
    job from one Redis to another."""
    here, there = chosen() or next(iter(shards()), ""), shard_of(queue)
    if here != there:
        raise ConfigError(
            f'the queue "{queue}" is on the shard {there}, the jobs are on {here}: jobs move '
            "within one Redis only; push them again"
        )


def on_its_shard(owner: C) -> C:
    """For a class of objects with a queue's ``name``: each call and attribute is about the shard
    of that queue. A generator (``scan``) is left out: its pages choose the shard."""
    for name, value in list(vars(owner).items()):
        if isinstance(value, property):
            getter, setter = value.fget, value.fset
            assert getter is not None
            setattr(owner, name, property(_within(getter), setter and _within(setter)))
        elif isfunction(value) and not name.startswith("__") and name != "scan":
            setattr(owner, name, _within(value))
    return owner


def _within(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with on_shard_of(self.name):
            return call(self, *args, **kwargs)

    return method
