"""What a job makes of the arguments in a payload, and of those of a push: by the types of its
parameters. Only typed jobs have one; it is made with the definition."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, get_type_hints

from ...errors import InvalidJob
from ...wire.positions import Parameters
from ...wire.prepared import StepResult
from ...wire.validation import first_foreign_value
from ..results.parts import Failure, returned
from .codec import Codec, Field, Misfit

_REST: Final = inspect.Parameter.VAR_POSITIONAL
_NAMED: Final = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)


class Codecs(NamedTuple):
    """What writes and reads the arguments of a job, and what it returns."""

    arguments: Codec
    result: Codec | None


class ArgumentReader:
    """Reads and writes the arguments of the job ``name``, and what it returns. Types that are
    defined later are looked up when they are first needed. ``has_result``: whether what its
    function returns is its result. Raises InvalidJob for a type that JSON cannot have."""

    __slots__ = ("_function", "_has_result", "_known", "_name", "_signature")

    def __init__(self, name: str, parameters: Parameters, *, has_result: bool) -> None:
        self._name = name
        self._function = inspect.unwrap(parameters.function)
        self._signature = parameters.signature
        self._has_result = has_result
        self._known: Codecs | None = None
        with suppress(NameError):  # the class stands below the job, or is for checkers alone
            self._known = self._made()

    def written(self, args: list[Any]) -> list[Any]:
        """The arguments of a push, as the payload has them. Raises InvalidJob for one that is not
        of its type."""
        try:
            return self._codecs().arguments.write(args)
        except Misfit as misfit:
            raise self._refused(misfit) from None

    def accepted(self, args: Sequence[Any]) -> list[Any]:
        """Arguments of a configuration, a command or a definition, as the payload has them: plain
        JSON that fits is taken as it is. Raises InvalidJob."""
        given = [*args]
        if first_foreign_value(given) is not None:
            return self.written(given)
        self.read(given)
        return given

    def prepared(self, args: list[Any]) -> list[Any]:
        """``written`` of the arguments of a step. One that has the result of another step is
        checked when that is known, in the child that runs it."""
        waits = [_has_result(each) for each in args]
        if not any(waits):
            return self.written(args)
        return [
            each if waiting else PLAIN.plain(each)
            for each, waiting in zip(args, waits, strict=True)
        ]

    def read(self, args: list[Any]) -> list[Any]:
        """The arguments in a payload, as the job gets them. Raises InvalidJob."""
        try:
            return self._codecs().arguments.read(args)
        except Misfit as misfit:
            raise self._refused(misfit) from None

    def kept(self, value: Any) -> dict[str, Any]:
        """What is kept of the value that the job has returned, as ``returned`` has it."""
        codec = self._codecs().result
        if codec is None:
            return returned(value)
        try:
            return returned(codec.write([value])[0])
        except Misfit as misfit:
            return {"error": Failure("not of its type", str(misfit))}

    def result(self, value: Any) -> Any:
        """What the job has returned, of which JSON has made ``value``. Raises InvalidJob."""
        codec = self._codecs().result
        if codec is None:
            return value
        try:
            return codec.read([value])[0]
        except Misfit as misfit:
            raise self._refused(misfit) from None

    def plain(self, values: Any) -> Any:
        """Arguments in a list or a dict, as JSON has them, a set in the order that a push gives it.
        Raises InvalidJob for what JSON cannot have."""
        codec = PLAIN if self._known is None else self._known.arguments
        try:
            return codec.plain(values)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidJob(f"job {self._name!r}: a value cannot be JSON: {error}") from None

    def _codecs(self) -> Codecs:
        if self._known is None:
            try:
                self._known = self._made()
            except NameError as error:
                raise InvalidJob(
                    f"job {self._name!r} is typed, and the type of a parameter is unknown "
                    f"({error}): import it where the job is defined, not for type checkers alone"
                ) from None
        return self._known

    def _made(self) -> Codecs:
        """The codecs. Raises NameError for an unknown type, and InvalidJob for a parameter of one
        that JSON cannot have."""
        hints = get_type_hints(self._function, include_extras=True)
        parameters = self._signature.parameters.values()
        fields = [
            Field(each.name, hints.get(each.name, Any), takes_rest=each.kind is _REST)
            for each in parameters
            if each.kind not in _NAMED
        ]
        for each in fields:
            self._check(each)
        return Codecs(Codec(fields), self._codec_of_result(hints.get("return", Any)))

    def _codec_of_result(self, kind: Any) -> Codec | None:
        """The codec of what the job returns. None if its type says nothing, or is one that JSON
        cannot have: most jobs keep no result, so that is told of those that do."""
        if kind is Any or not self._has_result:
            return None
        try:
            return Codec([Field("the result", kind)])
        except TypeError:
            return None

    def _check(self, field: Field) -> None:
        try:
            Codec([field])
        except TypeError as error:
            raise InvalidJob(
                f"job {self._name!r}: the parameter `{field.name}` cannot be typed: {error}"
            ) from None

    def _refused(self, misfit: Misfit) -> InvalidJob:
        return InvalidJob(f"job {self._name!r}: {misfit}")


PLAIN: Final = Codec([])


def _has_result(value: Any) -> bool:
    """Whether the result of another step is to stand somewhere in an argument."""
    if isinstance(value, dict):
        return any(map(_has_result, value.values()))
    if isinstance(value, list):
        return any(map(_has_result, value))
    return isinstance(value, StepResult)
