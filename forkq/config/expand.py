"""``${VAR}`` in the strings of a file: found, checked, replaced. Used by the configuration only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ..errors import ConfigError

_VARIABLE = re.compile(
    r"""(?P<literal>\$\$\{)                     # $${ stands for ${
      | \$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)
            (?P<fallback>:-(?:(?!\$\{)[^}])*)?\}
      | (?P<malformed>\$\{)""",
    re.VERBOSE,
)


def mentions_variable(found: object) -> bool:
    """Whether a string, or one anywhere in a list or table, has ``${`` in it."""
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, list):
        return any(map(mentions_variable, found))
    return isinstance(found, str) and "${" in found


def expanded(found: object, variables: Mapping[str, str] | None) -> object:
    """``${VAR}`` and ``${VAR:-default}`` replaced, in lists and tables too; ConfigError names an
    unset one.

    As in a shell, the default also stands in for an empty variable. Without ``variables`` only the
    spelling is checked.
    """
    if isinstance(found, dict):
        return {key: expanded(item, variables) for key, item in found.items()}
    if isinstance(found, list):
        return [expanded(item, variables) for item in found]
    if isinstance(found, str):
        return _VARIABLE.sub(lambda match: _substitute(match, variables), found)
    return found


def variables_in(found: object) -> Iterator[str]:
    """The names of the variables that strings anywhere in ``found`` refer to."""
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, list):
        for item in found:
            yield from variables_in(item)
    elif isinstance(found, str):
        yield from (match["name"] for match in _VARIABLE.finditer(found) if match["name"])


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
