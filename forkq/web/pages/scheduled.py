"""Jobs that were pushed for later."""

from __future__ import annotations

from typing import Final

from ...screens.job_acts import PATHS
from ..job_pages import routes
from ..routing import NavItem

ORDER: Final = 50
NAV: Final = NavItem("Scheduled", PATHS["scheduled"], "s")
ROUTES: Final = routes("scheduled")
