"""The version of a job's arguments: values, without I/O.

The payload has ``forkq.needs.version`` from version 2 on; a job without it is of version 1. An
older payload is upgraded step by step at the run. A newer one waits for newer code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from ...errors import InvalidJob, UnknownVersion, shown

NEED: Final = "version"
# The lowest version of forkq's payloads whose children know versions of jobs.
VERSION: Final = 9
_HIGHEST: Final = 1_000_000

Step = TypeVar("Step", bound=Callable[..., Any])


def version_in(needs: Mapping[str, Any]) -> int:
    """Returns the version of a job with these needs. Raises InvalidJob for what is none."""
    found = needs.get(NEED, 1)
    if not is_version(found):
        raise InvalidJob(f"the version of the job is {shown(found)}, no whole number from 1 on")
    return int(found)


def is_version(value: object) -> bool:
    """Whether ``value`` is the number of a version."""
    return type(value) is int and 1 <= value <= _HIGHEST


class Upgrades:
    """The version of the job ``name``, and how the arguments of each older one become those of the
    next."""

    __slots__ = ("_name", "_steps", "version")

    def __init__(self, name: str, version: int) -> None:
        self.version = version
        self._name = name
        self._steps: dict[int, Callable[..., Any]] = {}

    def add(self, version: object) -> Callable[[Step], Step]:
        """Decorator: the function takes the arguments of a job of ``version``, and returns a list
        of those of the next one. Raises InvalidJob for a version that is not an older one."""
        self._check(version)

        def register(step: Step) -> Step:
            self._steps[version] = step  # type: ignore[index]
            return step

        return register

    def _check(self, version: object) -> None:
        if not is_version(version) or version >= self.version:  # type: ignore[operator]
            raise InvalidJob(
                f"job {self._name!r} has version {self.version}: upgrade({shown(version)}) is for "
                f"no older one; pass 1 to {self.version - 1}"
            )
        if version in self._steps:
            raise InvalidJob(f"job {self._name!r} has two functions for upgrade({version})")

    def missing(self, version: int) -> list[int]:
        """The versions from this one on that no function upgrades."""
        return [each for each in range(version, self.version) if each not in self._steps]

    def upgraded(self, args: list[Any], needs: Mapping[str, Any]) -> list[Any]:
        """The arguments of a job with these ``needs``, as this version has them. Raises InvalidJob
        if a step is missing, or returns no list; what a step raises is left as it is."""
        first = version_in(needs)
        if missing := self.missing(first):
            raise InvalidJob(
                f"job {self._name!r} has version {self.version}, and nothing upgrades one of "
                f"version {missing[0]}: write @job.upgrade({missing[0]})"
            )
        for version in range(first, self.version):
            found = self._steps[version](*args)
            if not isinstance(found, list | tuple):
                raise InvalidJob(
                    f"job {self._name!r}: upgrade({version}) has returned {type(found).__name__}; "
                    "return a list of the next version's arguments"
                )
            args = [*found]
        return args

    def is_older_than(self, needs: Mapping[str, Any]) -> bool:
        """Whether only newer code can run a job with these needs."""
        return NEED in needs and version_in(needs) > self.version

    def given_up(self, needs: Mapping[str, Any], hours: float) -> UnknownVersion:
        """The error of a job of a newer version that has waited for so long."""
        return UnknownVersion(
            f"it is of version {version_in(needs)} of the job {self._name!r}; no process that "
            f"fetched it in {hours:.0f} hours has had that, and this one has {self.version}"
        )
