"""The words of another library, each with what to write in forkq instead."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Words(msgspec.Struct, frozen=True):
    """One library. ``packages`` are those whose import shows that it is used. Each mapping is from
    a word to the sentence that says what to do:

    ``decorators`` and their keywords, ``options``; ``calls``, methods that are rare enough to be
    known by their name; ``job_calls``, methods of a decorated function; ``keywords`` of both;
    ``owned``, methods that are known with their owner, as in "control.revoke"; ``results``, what is
    asked of what a push returns, or of what ``makers`` return; ``names`` that are imported;
    ``bound``, what is on the first argument of a bound task;
    ``settings``, in lower case; ``setting_prefix`` comes before them in Django's settings."""

    library: str
    packages: frozenset[str]
    decorators: Mapping[str, str]
    options: Mapping[str, str]
    calls: Mapping[str, str]
    job_calls: Mapping[str, str]
    keywords: Mapping[str, str]
    names: Mapping[str, str]
    owned: Mapping[str, str] = msgspec.field(default_factory=dict)
    results: Mapping[str, str] = msgspec.field(default_factory=dict)
    makers: frozenset[str] = frozenset()
    bound: Mapping[str, str] = msgspec.field(default_factory=dict)
    settings: Mapping[str, str] = msgspec.field(default_factory=dict)
    setting_prefix: str = ""
