"""Damaged keys: another program wrote them, and they hold another type than forkq keeps there.

A damaged key stops only the queue or set that it belongs to. A process that meets one logs the key
and the remedy once, and goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

# By the first pattern that is found in a key, under any prefix. A name may contain anything, so the
# keys with a name at their end come before those that are known by their own end.
_BELONGS: Final = tuple(
    (re.compile(pattern, re.DOTALL), kind)
    for pattern, kind in (
        (r"forkq:cron:runs:", "list"),
        (r"forkq:classes:deaths:", "zset"),
        (
            r"forkq:cron:(origin|claim):|forkq:(place|host|task|web:message|pushed|result|ran_twice|went_back):",
            "string",
        ),
        (r"forkq:batch:[^:]*:ends$", "string"),
        (r"forkq:(batch|event|flushed|lost|steps|totals|unique):|it-[^:]*$", "hash"),
        (r"forkq:undo:[0-9a-f]+:\d+$|forkq:throttle:", "list"),
        (r"forkq:undo:", "hash"),
        (
            r"forkq:(controlled|paused:by|cron|cron:last|cron:pending|parameters|classes:held)$",
            "hash",
        ),
        (r"forkq:(moves|arrived|cancelled|batches:counts)$", "hash"),
        (r"forkq:results:ended$|\{queue:.*\}:(suspects|moving)$", "list"),
        (r"forkq:notes$", "stream"),
        (r"forkq:notes:from:", "string"),
        (r"forkq:(cron:paused|classes:released|suspects|flows:unfinished|signalled)$", "set"),
        (r"forkq:(secret|leader|leader:left|stat:ran_twice)$", "string"),
        (r"\{queue:.*\}:(inflight|control|turn)$", "hash"),
        (r"\{queue:.*\}:(bucket|full|busy)$", "string"),
        (r"queue:", "list"),
        (r"stat:|h\||deploylock-", "string"),
        (r"j\||-marks$", "hash"),
        (r"-signals$", "list"),
        (r"(queues|paused|processes)$", "set"),
        (
            r"(schedule|retry|dead|forkq:fetched|forkq:dead:bounds|forkq:marked|forkq:tickets|forkq:batches|forkq:cancelled:ended)$",
            "zset",
        ),
        (r":\d+:[0-9a-f]{12}(:work(ers)?)?$", "hash"),
    )
)
# What a process logs that has ended a job without that.
DAMAGED_FEATURE: Final = "a job ended, and one of its features was left out: the key is damaged"
_IN_WORDS: Final = {"zset": "sorted set", "none": "nothing"}


def kind(key: str) -> str | None:
    """The type of what forkq keeps at ``key``, in the words of Redis's TYPE; None if the key is not
    forkq's."""
    return next((kind for pattern, kind in _BELONGS if pattern.search(key)), None)


def is_damaged(key: str, found: str) -> bool:
    """Whether ``found``, the reply to TYPE, is another type than forkq keeps at ``key``."""
    return found not in ("none", kind(key))


def about(key: str) -> dict[str, str]:
    """The fields of a log line about a damaged key."""
    return {"key": key, "belongs": _in_words(kind(key)), "remedy": remedy(key)}


def remedy(key: str) -> str:
    """The command that moves a damaged key away. It deletes nothing."""
    return f"RENAME {key} damaged:{key}"


def message(keys: Iterable[str]) -> str:
    """The text of an error about damaged keys."""
    return "; ".join(
        f'the key "{key}" holds something else than a {_in_words(kind(key))}: move it away with '
        f"`{remedy(key)}`"
        for key in keys
    )


def damaged(keys: Sequence[str], types: Sequence[str]) -> list[str]:
    """The keys among ``keys`` that are damaged; ``types`` are the replies to TYPE."""
    return [key for key, found in zip(keys, types, strict=True) if is_damaged(key, found)]


def _in_words(kind: str | None) -> str:
    return _IN_WORDS.get(kind or "", kind or "value of forkq")
