"""What one check has found. Each check is a function that returns one Finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from ..values import replace
from ..wire.printable import cut, printable

Level: TypeAlias = Literal["ok", "warn", "fail"]

_LONGEST_REASON = 500
# Names in one line.
_SHOWN = 5


class Finding(msgspec.Struct, frozen=True):
    """``what`` is the fact, ``why`` it matters, ``remedy`` what to do. ``checked`` is False if the
    check could not be made; its level is "warn" then."""

    level: Level
    check: str
    what: str
    why: str = ""
    remedy: str = ""
    checked: bool = True

    def __str__(self) -> str:
        """The finding as one line. The message of an app's error may have several."""
        text = "; ".join(part for part in (self.what, self.why, self.remedy) if part)
        return printable(f"{self.level:<4}  {self.check:<12}  {text}")

    def as_dict(self) -> dict[str, Any]:
        """The finding for JSON, and for the fields of a log line."""
        return msgspec.structs.asdict(self)


def as_text(findings: Iterable[Finding]) -> Iterator[str]:
    """The lines that show them. Checks in a row that could not be made for one reason share one."""
    left: list[Finding] = []
    for finding in findings:
        if left and (finding.checked or finding.why != left[0].why):
            yield _shared(left)
            left = []
        if finding.checked:
            yield str(finding)
        else:
            left.append(finding)
    if left:
        yield _shared(left)


def _shared(left: Sequence[Finding]) -> str:
    if len(left) == 1:
        return str(left[0])
    what = f"{left[0].what}: {', '.join(one.check for one in left)}"
    return str(replace(left[0], check=f"{len(left)} checks", what=what))


def unchecked(check: str, reason: str, remedy: str = "") -> Finding:
    """The finding of a check that cannot be made."""
    return Finding("warn", check, "not checked", cut(reason, _LONGEST_REASON), remedy, False)


def examine(check: str, make: Callable[[], Finding]) -> Finding:
    """Makes one check. A check that fails to run must not hide the others: a proxy may answer
    anything, and the app may raise anything."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - see above; the reason is shown
        return unchecked(check, str(error) or type(error).__name__)


def listed(names: Iterable[str]) -> str:
    """The first of ``names``, and how many more there are."""
    known = [cut(name) for name in names]
    more = f" and {len(known) - _SHOWN:,} more" if len(known) > _SHOWN else ""
    return ", ".join(known[:_SHOWN]) + more
