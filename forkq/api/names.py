"""Names of queues and processes, as Redis has them."""

from __future__ import annotations

from collections.abc import Iterable

from ..limits.patterns import decoded_names


def suspects_among(names: Iterable[str], index: Iterable[bytes] | None) -> list[str]:
    """The queues among ``names`` that may have suspects: all of them if ``index``, the members of
    ``Keys.suspected``, is None, because that key is damaged."""
    if index is None:
        return list(names)
    having = set(decoded_names(index))
    return [name for name in names if name in having]


def texts(values: Iterable[bytes]) -> list[str]:
    """Names as text, sorted. Names that are not UTF-8 are left out."""
    return sorted(decoded_names(values))
