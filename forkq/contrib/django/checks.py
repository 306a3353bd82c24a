"""``manage.py check``: what is wrong in the settings of forkq, before a process needs them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error

from ...config.load import load
from ...errors import ConfigError

_KNOWN = ("FORKQ", "FORKQ_ON_COMMIT")


def check_settings(**_options: Any) -> list[CheckMessage]:
    """E001: the configuration. E002: a setting that there is not. E003: FORKQ_ON_COMMIT."""
    found: list[CheckMessage] = []
    try:
        load(None, {}, os.environ, Path.cwd())
    except ConfigError as error:
        found += [Error(line, id="forkq.E001") for line in str(error).splitlines()]
    for name in sorted(_misspelt()):
        text = f"settings.{name}: no such setting; there is {' and '.join(_KNOWN)}"
        found.append(Error(text, id="forkq.E002"))
    if not isinstance(value := getattr(settings, "FORKQ_ON_COMMIT", False), bool):
        kind = type(value).__name__
        text = f"settings.FORKQ_ON_COMMIT: expected True or False, found a {kind}"
        found.append(Error(text, id="forkq.E003"))
    return found


def _misspelt() -> set[str]:
    """Settings that begin with FORKQ and mean nothing."""
    return {name for name in dir(settings) if name.startswith("FORKQ")} - set(_KNOWN)
