"""Whether a job that waits fits the code that is here: its version, arguments and cursor.

Names, types and paths only. What is said of a job never has a value of its arguments, so no text of
an error is passed on that the app, or a library of it, may have written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from ...errors import InvalidJob, led_to
from ...features.batch.parts import FLOW
from ...features.iterable.parts import CURSOR
from ...features.version.parts import NEED, Upgrades, version_in
from ...registry import JobSpec
from ...wire.marks import VERSION, needs_in, needs_newer
from ...wire.payload import DEEPEST, bounded, encode, loads

Problem: TypeAlias = Literal["class", "forkq", "version", "upgrade", "arguments", "types", "cursor"]

# What to do before the deploy, by what does not fit.
REMEDIES: Final[Mapping[Problem, str]] = {
    "class": "keep the class until they have ended, or register its successor under this name",
    "forkq": "deploy the forkq that has pushed them",
    "version": "deploy the code that has pushed them: they wait for it, for a day at most",
    "upgrade": "write or mend that upgrade function",
    "arguments": "give new parameters defaults, or make it a new version with an upgrade",
    "types": "let the type read what waits, or make it a new version with an upgrade",
    "cursor": "keep it iterable until they have ended: a plain run begins again at the first item",
}
_NAMED: Final = re.compile(r"`(\w+)")
_INDEX: Final = re.compile(r"\[\d+\]")


class Unfit(NamedTuple):
    """What of a job does not fit the code, in words that are the same for all such jobs."""

    problem: Problem
    what: str


class CheckedJob(msgspec.Struct):
    """What the check needs of a payload. ``args`` are None if they are no array."""

    name: str = msgspec.field(name="class")
    jid: Any = ""
    queue: Any = ""
    args: list[msgspec.Raw] | None = []
    marks: Any = msgspec.field(name="forkq", default=None)


_decode: Final = msgspec.json.Decoder(CheckedJob).decode


def checked_job(raw: bytes) -> CheckedJob:
    """The job in a payload. Raises MalformedPayload."""
    try:
        found = _decode(bounded(raw) if len(raw) > DEEPEST else raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        job = loads(raw)
        args = job.get("args")
        parts = [msgspec.Raw(encode(each)) for each in args] if type(args) is list else None
        return CheckedJob(job["class"], job.get("jid"), job.get("queue"), parts, job.get("forkq"))
    if found.args is None:  # null is no argument
        found.args = []
    return found


def unfit(spec: JobSpec, job: CheckedJob) -> Unfit | None:
    """Why the code of ``spec`` cannot run the job as it is meant; None if it can."""
    needs = needs_in(job.marks)
    if needs_newer(job.marks):
        return Unfit("forkq", f"they need a newer forkq: this one knows version {VERSION}")
    if job.args is None:
        return Unfit("arguments", "their `args` are no array")
    return (
        _of_version(spec, needs) or _of_arguments(spec, job.args, needs) or _of_cursor(spec, needs)
    )


def _of_version(spec: JobSpec, needs: Mapping[str, Any]) -> Unfit | None:
    if spec.upgrades is None and NEED not in needs:
        return None
    upgrades = spec.upgrades or Upgrades(spec.name, 1)
    try:
        found = version_in(needs)
    except InvalidJob:
        return Unfit("version", "their version is no whole number from 1 on")
    if found > upgrades.version:
        return Unfit("version", f"they are of version {found}, and the code has {upgrades.version}")
    if missing := upgrades.missing(found):
        what = f"they are of version {found}, and there is no upgrade({missing[0]})"
        return Unfit("upgrade", what)
    return None


def _of_arguments(spec: JobSpec, raw: list[msgspec.Raw], needs: Mapping[str, Any]) -> Unfit | None:
    """Whether the job takes these arguments. Most jobs say only how many they take."""
    if spec.upgrades is None and spec.reader is None:
        return _of_count(spec, len(raw))
    if _takes_results(needs):  # which are not among them yet
        return _of_count(spec, len(raw)) if version_in(needs) == _version(spec) else None
    args = [msgspec.json.decode(each) for each in raw]
    if spec.upgrades is not None:
        try:
            args = spec.upgrades.upgraded(args, needs)
        except Exception as error:  # noqa: BLE001 - code of the app; it is told
            what = f"the upgrade from version {version_in(needs)} fails ({type(error).__name__})"
            return Unfit("upgrade", what)
    return _of_count(spec, len(args)) or _of_types(spec, args)


def _version(spec: JobSpec) -> int:
    return 1 if spec.upgrades is None else spec.upgrades.version


def _takes_results(needs: Mapping[str, Any]) -> bool:
    """Whether results of other steps of a flow stand in for arguments."""
    flow = needs.get(FLOW)
    return type(flow) is dict and bool(flow.get("takes"))


def _of_count(spec: JobSpec, count: int) -> Unfit | None:
    fewest, most = spec.arity
    if fewest <= count <= most:
        return None
    return Unfit("arguments", f"the code takes {spec.takes}, and they have {count}")


def _of_types(spec: JobSpec, args: list[Any]) -> Unfit | None:
    if spec.reader is None:
        return None
    try:
        spec.reader.read(list(spec.reader.plain(args)) if spec.upgrades else args)
    except Exception as error:  # noqa: BLE001 - a model of the app may raise anything
        return Unfit("types", _said(spec, error))
    return None


def _said(spec: JobSpec, error: Exception) -> str:
    """What does not fit. msgspec's own text has no value; one with a cause was raised by a model or
    a check of the app, which may have put one into it."""
    text = str(error).removeprefix(f"job {spec.name!r}: ") if isinstance(error, InvalidJob) else ""
    named = _NAMED.match(text)
    argument = f"`{named[1]}`" if named else "an argument"
    links = list(led_to(error))
    refused = next((one for one in links if isinstance(one, msgspec.ValidationError)), None)
    if refused is None:
        return f"{argument} cannot be read ({type(error).__name__})"
    if refused.__cause__ is None:
        return _INDEX.sub("[]", text)
    model = next((one for one in links if hasattr(one, "error_count")), None)
    return f"{argument}: {_of_model(model) if model else 'a check of its type refuses it'}"


def _of_model(error: Any) -> str:
    """What pydantic has found, by its own name for that, and the name of a field that is
    missing."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    missing = f" `{first['loc'][-1]}`" if first["type"] == "missing" else ""
    return f"its model says {first['type']}{missing}"


def _of_cursor(spec: JobSpec, needs: Mapping[str, Any]) -> Unfit | None:
    if CURSOR not in needs or spec.is_iterable:
        return None
    return Unfit("cursor", "they have a cursor, and the code is not iterable any more")
