"""``replace`` for every value of the package: most are structs of msgspec, some are dataclasses.

A struct costs a start of forkq a fortieth of what a dataclass costs it, and mypy checks both alike
(docs/decisions/043).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from dataclasses import replace as replace  # noqa: PLC0414, TID251 - mypy knows the fields
else:
    _Value = TypeVar("_Value")

    def replace(value: _Value, **changes: object) -> _Value:
        """Returns a copy of ``value`` with these fields changed."""
        struct = isinstance(value, msgspec.Struct)
        return (msgspec.structs if struct else dataclasses).replace(value, **changes)
