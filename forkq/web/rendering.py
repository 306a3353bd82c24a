"""From a View to HTML: the templates, their helpers, and what every page shows."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import jinja2
from starlette.responses import HTMLResponse, Response

from ..screens.problems import BEHIND
from . import cells, charts, texts
from .flash import Flash, end_flash
from .visit import View, Visit

_TEMPLATES: Final = Path(__file__).with_name("templates")
LIVE: Final = ("problems", "live")  # the blocks that are sent again


@cache
def environment() -> jinja2.Environment:
    """Templates with escaping on, and an error for a name that is not given."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(texts.FILTERS, drawn=cells.drawn)
    made.globals.update(sparkline=charts.sparkline, share=charts.share, BEHIND=BEHIND)
    made.globals["parts"] = made.get_template("parts.html").module
    return made


def page_response(visit: Visit, view: View, flash: Flash | None = None) -> Response:
    """The whole page, with the message of what was done before it."""
    template = environment().get_template(view.template)
    html = template.render({**_values(visit, view), "flash": flash})
    response = HTMLResponse(html, view.status)
    if flash is not None:
        end_flash(response)
    return response


def live_parts(visit: Visit, view: View) -> dict[str, str]:
    """The parts of a page that change by themselves, as HTML by the id of their element."""
    template = environment().get_template(view.template)
    context = template.new_context({**_values(visit, view), "flash": None})
    root = _base_blocks() | template.blocks
    return {name: "".join(root[name](context)) for name in LIVE if name in root}


@cache
def _base_blocks() -> dict[str, Any]:
    return dict(environment().get_template("base.html").blocks)


def _values(visit: Visit, view: View) -> dict[str, Any]:
    found = view.values.get("problems")
    return {
        "visit": visit,
        "url": visit.url,
        "navigation": visit.request.app.state.navigation,
        **view.values,
        "problems": visit.problems() if found is None else found,
        "well": partial(visit.request.app.state.shards.well, visit.shard),
    }
