"""``manage.py check``: what is wrong in the settings of forkq, before a process needs them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error

from ...config.load import load
from ...errors import ConfigError, a_type

_KNOWN = ("FORKQ", "FORKQ_ON_COMMIT")


def check_settings(**_options: Any) -> list[CheckMessage]:
    """Checks the settings of forkq. E001: the configuration. E002: a setting that does not exist.
    E003: FORKQ_ON_COMMIT."""
    found: list[CheckMessage] = [Error(text, id="forkq.E001") for text in _wrong_configuration()]
    for name in sorted(_misspelt()):
        text = f"settings.{name}: no such setting; there is {' and '.join(_KNOWN)}"
        found.append(Error(text, id="forkq.E002"))
    value = getattr(settings, "FORKQ_ON_COMMIT", False)
    if not isinstance(value, bool):
        text = f"settings.FORKQ_ON_COMMIT: expected True or False, found {a_type(type(value))}"
        found.append(Error(text, id="forkq.E003"))
    return found


def _wrong_configuration() -> list[str]:
    try:
        load(None, {}, os.environ, Path.cwd())
    except ConfigError as error:
        return str(error).splitlines()
    return []


def _misspelt() -> set[str]:
    """The settings that begin with FORKQ and mean nothing."""
    return {name for name in dir(settings) if name.startswith("FORKQ")} - set(_KNOWN)
