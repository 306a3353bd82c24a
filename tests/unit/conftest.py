"""All properties but one stand here."""

from __future__ import annotations

import tests.support.properties  # noqa: F401 - sets hypothesis up
