"""Failed jobs that wait for their next try."""

from __future__ import annotations

from typing import Final

from ...screens.job_acts import PATHS
from ..job_pages import routes
from ..routing import NavItem

ORDER: Final = 40
NAV: Final = NavItem("Retries", PATHS["retrying"], "r")
ROUTES: Final = routes("retrying")
