"""A capsule: some queues, and how many processors and children serve them. Configuration only.

Made by ``load``; read by the master (how many children to spawn), by a child's fetcher (which
queues, in which order) and by ``forkq config check``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from msgspec import Meta

from ..errors import ConfigError
from ..limits.rules import Rulebook
from ..wire.options import QUEUE_CHARACTERS, QUEUE_NAME
from ..wire.redis_url import redacted_url
from .recycling import Recycling
from .schema import Key
from .settings import Origin

Mode = Literal["strict", "random", "weighted"]
Kind = Literal["threads", "async"]

DEFAULT_NAME = "default"
DEFAULT_QUEUES = (("default", 0),)
DEFAULT_CONCURRENCY = 5
MOST_THREADS: Final = 1000
MOST_COROUTINES: Final = 10_000
# How many suspects of an async capsule run together at most.
MOST_TOGETHER: Final = 32
# Of an async capsule: jobs at a time where none is given; threads that settle what may block.
ASYNC_CONCURRENCY: Final = 1000
SETTLING_THREADS: Final = 4
MOST_SOLO = 25
QUEUE_LIST: Final = 'a list of queues, each "NAME", "NAME,WEIGHT" or ["NAME", WEIGHT]'

# A child is called CAPSULE.NUMBER; the clock is a process beside the children, with this name.
RESERVED_NAMES = frozenset({"clock"})

_QUEUE_NAME = rf"[*?\[\]{QUEUE_CHARACTERS}]+"
_QUEUE = re.compile(rf"({_QUEUE_NAME})(?:,([0-9]{{1,6}}))?")
_CAPSULE_NAME = re.compile(r"[A-Za-z0-9_.:-]+")
BRACKETS: Final = re.compile(r"\[.[^\]]*\]")


def parse_queue(text: str) -> tuple[str, int]:
    """Name and weight of ``"mail,3"``: ``("mail", 3)``; the weight is 0 if the text has none.
    Raises ConfigError."""
    match = _QUEUE.fullmatch(text)
    if match is None or (match[2] is not None and int(match[2]) == 0):
        raise ConfigError(
            f'"{redacted_url(text)}" is not a queue: expected NAME or NAME,WEIGHT, {QUEUE_NAME} '
            "(of a pattern also * ? [ ]), the weight a whole number from 1 to 999999"
        )
    return match[1], int(match[2] or 0)


def weigh(queues: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """The queues of one capsule with their final weights. Raises ConfigError for no queue, or one
    named twice. If one queue has a weight, a queue without one gets 1: with 0 it would never be
    chosen."""
    listed = tuple(queues)
    if not listed:
        raise ConfigError("expected at least one queue, found none")
    names = [name for name, _ in listed]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f'queue "{name}" is listed twice: for a bigger share, "{name},2"')
    if any(weight for _, weight in listed):
        return tuple((name, weight or 1) for name, weight in listed)
    return listed


def check_queue(name: str) -> None:
    """Raises ConfigError unless ``name`` is a possible name of a queue, or a pattern."""
    if "," in name:
        raise ConfigError(f'"{name}" has a weight, which only queues take: write the name alone')
    parse_queue(name)
    if "[" in BRACKETS.sub("", name):
        raise ConfigError(
            f'"{name}" is a bad pattern: its "[" is never closed, as in "tenant-[ab]"'
        )


def _queues(items: tuple[str | tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Name and weight of each queue, for both spellings of a weight: ``"mail,3"`` and ``["mail",
    3]``."""
    texts = (item if isinstance(item, str) else f"{item[0]},{item[1]}" for item in items)
    queues = weigh(parse_queue(text) for text in texts)
    for name, _ in queues:
        check_queue(name)
    return queues


_Queues = Annotated[tuple[str | tuple[str, int], ...], Meta(description=QUEUE_LIST), _queues]


@dataclass(frozen=True, slots=True)
class Capsule:
    """One named group of queues, served by ``workers`` children of ``concurrency`` processors; of
    the ``kind`` "async" by children with one event loop, in which so many coroutines run, and with
    ``threads`` processors for other jobs.

    ``queues`` are pairs of name and weight in the user's order. The weights are as ``weigh`` leaves
    them: either 0 for every queue, or 1 and more for every queue. A name may be a pattern.
    ``job_timeout`` and ``job_hard_timeout`` are the limits, in seconds, of jobs that set none; 0 is
    no limit. ``solo_children``: how many suspects run side by side, 0 for one for each processor,
    but no more than ``MOST_SOLO``. ``rules`` are those of all queues, in this capsule or not.
    ``shard``: the one that its children fetch from; "" if the configuration has no shards.
    """

    name: str
    queues: Annotated[tuple[tuple[str, int], ...], Key(
        "The queues and patterns that the capsule serves: strictly in this order, or with weights "
        "by chance in these proportions.",
        ("FORKQ_QUEUES",), "-q", parameter="queues", split=r"[\s;]+",  # a weight has a comma
        default="the queue `default` for the capsule `default`; required for others",
        written=_Queues,
    )] = DEFAULT_QUEUES  # fmt: skip
    concurrency: Annotated[int, Meta(ge=1, le=MOST_COROUTINES), Key(
        "Jobs that one child runs at the same time: at most 1000 with a thread for each, or "
        "coroutines in an `async` capsule.",
        ("FORKQ_CONCURRENCY",), "--concurrency",
        default="`5`, or `1000` in an `async` capsule",
    )] = DEFAULT_CONCURRENCY  # fmt: skip
    workers: int = 1
    job_timeout: float = 0.0
    job_hard_timeout: float = 0.0
    solo_children: int = 0
    rules: Rulebook = field(default_factory=Rulebook, hash=False)
    recycling: Recycling = field(default_factory=Recycling)
    shard: str = ""
    kind: Annotated[Kind, Key(
        "What runs the jobs of a child: `threads`, or `async`, an event loop that runs `async def` "
        "jobs beside a few threads ([async jobs](async.md))."
    )] = "threads"  # fmt: skip
    threads: Annotated[int, Meta(ge=1, le=MOST_THREADS), Key(
        "Of an `async` capsule: the threads of each child that run its `def` jobs."
    )] = 10  # fmt: skip

    @property
    def is_async(self) -> bool:
        """Whether an event loop runs its jobs."""
        return self.kind == "async"

    @property
    def job_threads(self) -> int:
        """How many threads of a child run code of jobs and their handlers, besides its event
        loop."""
        return self.threads + SETTLING_THREADS if self.is_async else self.concurrency

    @property
    def places(self) -> int:
        """How many jobs of a child can be in progress at once."""
        return self.concurrency + (self.job_threads if self.is_async else 0)

    @property
    def queue_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.queues)

    @property
    def listed_queues(self) -> tuple[str, ...]:
        """The queues as a user writes them: ``NAME``, or ``NAME,WEIGHT`` if they have weights."""
        return tuple(f"{name},{weight}" if weight else name for name, weight in self.queues)

    @property
    def most_solo(self) -> int:
        """How many suspects run side by side, each in its own child."""
        return self.solo_children or min(self.concurrency * self.workers, MOST_SOLO)

    @property
    def mode(self) -> Mode:
        """How the fetcher orders the queues; the three modes are Sidekiq's."""
        weights = {weight for _, weight in self.queues}
        if weights <= {0}:
            return "strict"
        return "random" if weights == {1} else "weighted"


def check_kinds(capsules: Iterable[Capsule], origins: Mapping[str, Origin]) -> None:
    """Raises ConfigError for what only the other kind of a capsule has."""
    for capsule in capsules:
        place = f"capsules.{capsule.name}"
        if not capsule.is_async and f"{place}.threads" in origins:
            raise ConfigError(
                f'{origins[f"{place}.threads"]}: only a capsule with kind = "async" has it; here '
                "`concurrency` says how many threads run jobs"
            )
        if not capsule.is_async and capsule.concurrency > MOST_THREADS:
            raise ConfigError(
                f"{origins[f'{place}.concurrency']}: expected a whole number from 1 to "
                f"{MOST_THREADS}, found the whole number {capsule.concurrency}; a capsule with "
                'kind = "async" may run more jobs at a time'
            )


def check_time_limits(capsules: Iterable[Capsule], origins: Mapping[str, Origin]) -> None:
    """Raises ConfigError for a hard limit that ends jobs before their time limit is over."""
    for capsule in capsules:
        soft, hard = capsule.job_timeout, capsule.job_hard_timeout
        if 0 < hard < soft:
            places = (f"capsules.{capsule.name}.job_hard_timeout", "forkq.job_hard_timeout")
            place = next(origins[key] for key in places if key in origins)
            raise ConfigError(
                f"{place}: expected at least the {soft:g} s of job_timeout, found {hard:g}"
            )


def check_name(name: str) -> None:
    """Raises ConfigError unless a capsule may be called ``name``."""
    if name in RESERVED_NAMES:
        raise ConfigError(f'"{name}" is a reserved name: it is the process that moves due jobs')
    if _CAPSULE_NAME.fullmatch(name) is None:
        raise ConfigError(
            f'"{name}" is no name for a capsule: expected letters, digits and _ . : - only'
        )
