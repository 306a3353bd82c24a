"""Jobs that were given up, the latest first."""

from __future__ import annotations

from typing import Final

from ...screens.job_acts import PATHS
from ..job_pages import routes
from ..routing import NavItem

ORDER: Final = 60
NAV: Final = NavItem("Dead", PATHS["dead"], "d")
ROUTES: Final = routes("dead")
