"""The language and the time zone of the push are active in the job, too.

They travel in the payload as ``locale`` (Sidekiq's key) and ``timezone``, in retries too.
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterator
from datetime import tzinfo
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.utils import timezone, translation

_LONGEST = 64


def note(job: dict[str, Any]) -> Iterator[None]:
    """Client middleware that adds language and time zone, unless the push has named others."""
    language = translation.get_language() if settings.USE_I18N else None
    if language is not None:
        job.setdefault("locale", language)
    zone = getattr(timezone.get_current_timezone(), "key", None) if settings.USE_TZ else None
    if zone is not None:
        job.setdefault("timezone", zone)
    yield


def activate(job: dict[str, Any]) -> Iterator[None]:
    """Server middleware that activates language and time zone for the job, and ends what the job
    itself activates. A job without them, or with names that this project does not know, has the
    project's defaults."""
    language = _language(job.get("locale")) or settings.LANGUAGE_CODE
    with translation.override(language), timezone.override(_zone(job.get("timezone"))):
        yield


def _language(name: Any) -> str | None:
    if not isinstance(name, str) or name == settings.LANGUAGE_CODE:
        return None
    try:
        return translation.get_supported_language_variant(name)
    except (LookupError, ValueError):  # a payload may say anything
        return None


def _zone(name: Any) -> tzinfo | None:
    return _zone_of(name) if isinstance(name, str) and len(name) <= _LONGEST else None


@lru_cache(maxsize=256)
def _zone_of(name: str) -> tzinfo | None:
    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, LookupError, OSError):  # OSError: the name of a folder
        return None
