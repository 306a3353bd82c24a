"""All queues: how many jobs they have, their rules, and where each rule comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from ..limits.overrides import in_force
from ..limits.patterns import decoded_names, is_pattern
from ..limits.rate_text import capacity, rate_text
from ..limits.rules import Rate, Rulebook, Rules
from ..servers import Server
from ..values import replace
from ..wire.keys import Keys
from .door import OnServer
from .door import server as default_server
from .processes import texts
from .running import busy_in_sidekiq


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue and its rules.

    ``size`` jobs are queued, of which ``suspects`` wait in a list of their own until solo children
    run them, each alone. ``busy`` jobs are in progress on all hosts, of which ``in_sidekiq`` run in
    processes of Sidekiq (as of their last heartbeats), where no rule counts them. ``tokens`` is how
    many jobs may start now by the rate. A rule that is not set is None (``blocking``: False).
    ``rate`` is text such as "100/minute". ``blocking`` is True if all later queues wait while this
    one has jobs in progress, or the names of those that wait. ``changed`` names the rules that were
    set at run time; the others are those of this process's configuration. ``paused_by`` is who has
    paused it, and ``paused_at`` when (epoch seconds), if that is known.
    """

    name: str
    size: int
    busy: int
    paused: bool
    limit: int | None
    process_limit: int | None
    rate: str | None
    burst: float | None
    tokens: float | None
    blocking: bool | tuple[str, ...]
    changed: tuple[str, ...]
    suspects: int = 0
    in_sidekiq: int = 0
    paused_by: str = ""
    paused_at: float | None = None

    @property
    def leased(self) -> int:
        """How many of the jobs in progress are in forkq's children: these count for the rules of
        the queue."""
        return self.busy - self.in_sidekiq

    @property
    def has_rules(self) -> bool:
        """Whether the queue has any rule, or is paused."""
        rules = (self.limit, self.process_limit, self.rate)
        return self.paused or bool(self.blocking) or any(rule is not None for rule in rules)


def queues(*names: str, server: Server | None = None) -> list[QueueState]:
    """The state of these queues. Without names: of every queue that was ever pushed to, has
    suspects or a rule, or is paused, by name. Raises ServerUnavailable."""
    server = server or default_server()
    keys, rules = server.keys, server.rules
    paused, controlled, pushed, time, suspected, paused_by = server.ask_leniently(
        ("SMEMBERS", keys.paused),
        ("HKEYS", keys.controlled),
        ("SMEMBERS", keys.queues),
        ("TIME",),
        ("SMEMBERS", keys.suspected),
        ("HGETALL", keys.paused_by),
        strict=4,
    )
    chosen = list(names) or _with_ruled(
        rules, texts({*paused, *controlled, *pushed, *(suspected or ())})
    )
    answers, counts = _answers(server, chosen, suspects_among(chosen, suspected))
    now = int(time[0]) * 1_000_000 + int(time[1])
    stopped, in_sidekiq = set(texts(paused)), busy_in_sidekiq(server)
    states = [
        _state(
            name,
            rules.of(name),
            answer,
            now,
            paused=name in stopped,
            suspects=counts.get(name) or 0,
            in_sidekiq=in_sidekiq[name],
        )
        for name, answer in zip(chosen, answers, strict=True)
    ]
    return [_with_pause(state, paused_by or {}) for state in states]


def _answers(
    server: Server, names: Sequence[str], alone: Sequence[str]
) -> tuple[list[list[Any]], dict[str, int]]:
    """The replies to ``_questions`` about each of these queues, and how many suspects the queues
    ``alone`` have."""
    questions = [_questions(server.keys, name) for name in names]
    counts = [("LLEN", server.keys.suspects(name)) for name in alone]
    replies = iter(server.ask_leniently(*chain.from_iterable(questions), *counts))
    answers = [list(islice(replies, len(asked))) for asked in questions]
    return answers, dict(zip(alone, replies, strict=True))


def state_of_parts(states: Sequence[QueueState]) -> QueueState:
    """The state of a spread queue, made of those of its parts. It is paused if all of them are."""
    sums = {
        name: sum(getattr(one, name) for one in states)
        for name in ("size", "busy", "suspects", "in_sidekiq")
    }
    paused = next((one for one in states if one.paused), states[0])
    changed = tuple(dict.fromkeys(rule for one in states for rule in one.changed))
    is_paused = all(one.paused for one in states)
    return replace(paused, paused=is_paused, changed=changed, **sums)


class Limits(OnServer):
    """The queues that have a rule or are paused. Set rules with ``Queue``. Raises
    ServerUnavailable."""

    __slots__ = ()

    def __iter__(self) -> Iterator[QueueState]:
        return (state for state in queues(server=self.server) if state.has_rules)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def get(self, name: str) -> QueueState:
        """The state of one queue, with its rules."""
        [state] = queues(name, server=self.server)
        return state


def _with_ruled(rules: Rulebook, names: list[str]) -> list[str]:
    ruled = (name for name in rules.entries if not is_pattern(name))
    return sorted({*names, *ruled})


def _questions(keys: Keys, name: str) -> list[tuple[str, str]]:
    return [
        ("LLEN", keys.queue(name)),
        ("HLEN", keys.inflight(name)),
        ("HGETALL", keys.control(name)),
        ("GET", keys.bucket(name)),
    ]


def _state(
    name: str,
    configured: Rules,
    replies: list[Any],
    now: int,
    *,
    paused: bool,
    suspects: int,
    in_sidekiq: int,
) -> QueueState:
    size, busy, control, bucket = replies
    found: Mapping[bytes, bytes] = control or {}
    rules = in_force(configured, found)
    rate = rules.rate
    return QueueState(
        name=name,
        size=(size or 0) + suspects,
        busy=(busy or 0) + in_sidekiq,
        paused=paused,
        limit=rules.limit,
        process_limit=rules.process_limit,
        rate=None if rate is None else rate_text(rate),
        burst=None if rate is None else rate.burst,
        tokens=None if rate is None else _tokens(rate, bucket, now),
        blocking=rules.blocking or False,
        changed=tuple(
            rule for rule in ("limit", "process_limit", "rate", "burst") if rule.encode() in found
        ),
        suspects=suspects,
        in_sidekiq=in_sidekiq,
    )


def _with_pause(state: QueueState, notes: Mapping[bytes, bytes]) -> QueueState:
    note = notes.get(state.name.encode(), b"") if state.paused else b""
    at, _, who = note.decode("utf-8", "replace").partition(" ")
    return replace(state, paused_by=who, paused_at=float(at)) if at.isdecimal() else state


def _tokens(rate: Rate, bucket: bytes | None, now: int) -> float:
    """How many tokens a queue has at ``now`` (epoch microseconds), counted as fetch.lua does."""
    most = capacity(rate)
    try:
        left, counted = map(float, (bucket or b"").split())
    except ValueError:  # no bucket: it is full
        return most
    if most == 0:
        return most
    earned = max(0.0, now - counted) * rate.count / rate.seconds / 1_000_000
    return min(most, left + earned)


def suspects_among(names: Iterable[str], index: Iterable[bytes] | None) -> list[str]:
    """The queues among ``names`` that may have suspects: all of them if ``index``, the members of
    ``Keys.suspected``, is None, because that key is damaged."""
    if index is None:
        return list(names)
    having = set(decoded_names(index))
    return [name for name in names if name in having]
