"""From the arguments of a call to the positions of a payload: Ruby knows no arguments by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ..errors import nearest

_NAMED: Final = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)


class Parameters:
    """The parameters of a job's ``perform``. ``arity``: the smallest and the largest number of
    positional arguments. ``names``: the names of these arguments, in order; "*name" takes all
    further ones. ``defaults``: by name, of those that have one. ``needs_names``: one without a
    default can only be given by name. ``function``: what has them, with their types."""

    __slots__ = ("arity", "defaults", "function", "names", "needs_names", "signature")

    def __init__(self, function: Callable[..., Any], signature: inspect.Signature) -> None:
        self.function = function
        self.signature = signature
        self.arity = _arity(signature)
        parameters = signature.parameters.values()
        self.names = tuple(
            f"*{p.name}" if p.kind == p.VAR_POSITIONAL else p.name
            for p in parameters
            if p.kind not in _NAMED
        )
        self.defaults = {
            p.name: p.default
            for p in parameters
            if p.kind not in _NAMED and p.default is not p.empty
        }
        self.needs_names = any(
            p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters
        )

    def __str__(self) -> str:
        bare = (p.replace(annotation=p.empty) for p in self.signature.parameters.values())
        return str(inspect.Signature([*bare]))

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The positional arguments for the payload. Raises TypeError if they do not fit."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(self._misnamed(len(args), kwargs) or str(error)) from None
        named = [name for name in bound.arguments if self.signature.parameters[name].kind in _NAMED]
        if named:
            raise TypeError(
                f"{', '.join(named)} can only be given by name, but a payload carries positions; "
                "make it a positional parameter"
            )
        if bound.kwargs:  # one was given by name, after one that was not given
            bound.apply_defaults()
        return list(bound.args)

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by their names, with defaults; some may be missing. Raises TypeError."""
        return {**self.defaults, **self.signature.bind_partial(*args, **kwargs).arguments}

    def _misnamed(self, given: int, kwargs: Mapping[str, Any]) -> str:
        """Which names are no parameters, and which arguments are missing beside the first
        ``given`` ones: Python would name one of both. "" if each name is a parameter."""
        parameters = self.signature.parameters
        left = [name for name in self.names[given:] if name not in kwargs and name in parameters]
        said = [_no_such(name, left) for name in kwargs if name not in parameters]
        if not said or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            return ""
        missing = [repr(name) for name in left if parameters[name].default is inspect._empty]
        return "; ".join([*said, f"missing: {', '.join(missing)}"] if missing else said)


def _no_such(name: str, left: Iterable[str]) -> str:
    near = nearest(name, left)
    return f"there is no {name!r}" + (f" (is {near!r} meant?)" if near else "")


def _arity(signature: inspect.Signature) -> tuple[int, float]:
    parameters = signature.parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    open_ended = any(p.kind == p.VAR_POSITIONAL for p in parameters)
    fewest = sum(p.default is p.empty for p in positional)
    return fewest, float("inf") if open_ended else len(positional)
