"""What a payload asks of the code of its job: a version that is here, and arguments that fit."""

from __future__ import annotations

from typing import Any

from .. import registry
from ..errors import InvalidJob
from ..features.version import parts as versions
from ..registry import JobSpec
from ..wire.marks import KEY, POSTPONED_FOR, needs_in, needs_newer
from ..wire.payload import Payload, json_kind
from .failure.retry import postponed_too_long, waits_for_code
from .failure.settle import NeedsNewer


def newer_code(marks: Any, job: Payload) -> BaseException | None:
    """Why the forkq or the code here is too old for the job; None if it is not."""
    if needs_newer(marks):
        return postponed_too_long(marks) or NeedsNewer()
    needs = needs_in(marks)
    if versions.NEED not in needs:
        return None
    spec = registry.find(job["class"])
    return None if spec is None else _newer_version(spec, needs, marks)


def _newer_version(spec: JobSpec, needs: dict[str, Any], marks: Any) -> BaseException | None:
    """Why the job of that version cannot be run here; None if it can."""
    upgrades = spec.upgrades or versions.Upgrades(spec.name, 1)
    try:
        if not upgrades.is_older_than(needs):
            return None
    except InvalidJob as error:
        return error
    if waits_for_code(marks):
        return NeedsNewer()
    return upgrades.given_up(needs, POSTPONED_FOR / 3600)


def arguments_of(spec: JobSpec, job: Payload) -> list[Any]:
    """The job's arguments. Raises InvalidJob if ``perform`` does not take them."""
    args = job.get("args")
    if args is None:
        return []
    if type(args) is not list:
        raise InvalidJob(f"`args` is {json_kind(args)}, not an array")
    if spec.upgrades is not None:
        args = _upgraded(spec, job, args)
    fewest, most = spec.arity
    if not fewest <= len(args) <= most:
        raise InvalidJob(f"{spec.name} takes {spec.takes}, the payload has {len(args)}")
    return args if spec.reader is None else spec.reader.read(args)


def _upgraded(spec: JobSpec, job: Payload, args: list[Any]) -> list[Any]:
    """The arguments as the version of the job has them that is here. Raises InvalidJob."""
    assert spec.upgrades is not None
    found = spec.upgrades.upgraded(args, needs_in(job.get(KEY)))
    return found if spec.reader is None else list(spec.reader.plain(found))
