"""``${VAR}`` in the strings of a file: found, checked, replaced. Used by the configuration only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ..errors import ConfigError

_VARIABLE = re.compile(
    r"""(?P<literal>\$\$\{)                     # $${ means ${
      | \$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)
            (?P<fallback>:-(?:(?!\$\{)[^}])*)?\}
      | (?P<malformed>\$\{)""",
    re.VERBOSE,
)


def leaves(value: object) -> Iterator[object]:
    """The plain values in lists and tables, however deep."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)
    else:
        yield value


def mentions_variable(value: object) -> bool:
    """Whether ``value`` is a string with ``${`` in it, or a list or table with such a string
    anywhere."""
    return any(isinstance(leaf, str) and "${" in leaf for leaf in leaves(value))


def variables_in(value: object) -> Iterator[str]:
    """The names of the variables that strings anywhere in ``value`` refer to."""
    texts = (leaf for leaf in leaves(value) if isinstance(leaf, str))
    matches = (match for text in texts for match in _VARIABLE.finditer(text))
    return (match["name"] for match in matches if match["name"])


def expanded(value: object, variables: Mapping[str, str] | None) -> object:
    """``value`` with ``${VAR}`` and ``${VAR:-default}`` replaced, in lists and tables too. Raises
    ConfigError, naming a variable that is not set. As in a shell, the default also stands in for an
    empty variable. Without ``variables`` only the spelling is checked."""
    if isinstance(value, dict):
        return {key: expanded(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [expanded(item, variables) for item in value]
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: _substitute(match, variables), value)
    return value


def _substitute(match: re.Match[str], variables: Mapping[str, str] | None) -> str:
    if match["literal"]:
        return "${"
    name, fallback = match["name"], match["fallback"]
    if name is None:
        raise ConfigError(
            "a ${ that cannot be read: write ${NAME} or ${NAME:-default}, and $${ for a plain ${"
        )
    if variables is None:
        return ""
    if fallback is not None:
        return variables.get(name) or fallback.removeprefix(":-")
    if name not in variables:
        raise ConfigError(
            f"the variable {name} is not set: set it, or give it a default as in ${{{name}:-...}}"
        )
    return variables[name]
