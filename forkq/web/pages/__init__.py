"""One module for each page. A new page is a new file here: it is found by itself.

``ROUTES``: routes made by ``page`` and ``action`` of routing.py. ``NAV``, a NavItem, if the page
is in the navigation, at the place that ``ORDER`` gives it. A page function takes a Visit and
returns a View; it runs in a thread, may ask forkq.api, and may raise any error of forkq. Its
template extends base.html; the block ``live`` is sent again whenever it changes. An action says
with a Plan what it would do to how many jobs; the confirmation page, the audit line, the result
message and the way back are made for it.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType

from starlette.routing import Route

from ..routing import NavItem


@cache
def _modules() -> tuple[ModuleType, ...]:
    names = [found.name for found in pkgutil.iter_modules(__path__)]
    modules = [importlib.import_module(f".{name}", __name__) for name in names]
    return tuple(
        sorted(modules, key=lambda module: (getattr(module, "ORDER", 100), module.__name__))
    )


def all_routes() -> list[Route]:
    """The routes of all pages."""
    return [route for module in _modules() for route in module.ROUTES]


def navigation() -> list[NavItem]:
    """The pages of the navigation, in their order."""
    return [module.NAV for module in _modules() if hasattr(module, "NAV")]
