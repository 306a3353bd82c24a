"""SVG elements as text, and the frame that all charts share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from markupsafe import Markup, escape

Children: TypeAlias = "Iterable[Markup]"

_EMPTY: Final = Markup("")
# Points that are not in XML, such as a NUL of a job's name, would end the page's document.
_LABEL_LIMIT: Final = 120


def element(name: str, *children: Markup | str, **attributes: object) -> Markup:
    """One element of SVG. Text is escaped; ``class_`` is written as class, ``text_anchor`` as
    text-anchor; an attribute that is None is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(escape(child) for child in children)
    return Markup(f"<{name}{written}>{inner}</{name}>")  # noqa: S704 - each part is escaped above


def joined(parts: Children) -> Markup:
    """The elements as one text."""
    return _EMPTY.join(parts)


def percent(share: float) -> str:
    """A share from 0 to 1 as a length of SVG."""
    return f"{share * 100:.6g}%"


def chart(summary: str, height: int, *children: Markup, kind: str) -> Markup:
    """The frame of a chart, ``height`` pixels high. ``summary`` is what a screen reader reads in
    its place."""
    return element(
        "svg",
        *children,
        class_=f"chart chart-{kind}",
        role="img",
        aria_label=summary,
        width="100%",
        height=height,
    )


def stretched(height: int, *children: Markup) -> Markup:
    """Children in coordinates of 0 to 1000, stretched to the chart's width and ``height``."""
    return element(
        "svg",
        *children,
        width="100%",
        height=height,
        viewBox=f"0 0 1000 {height}",
        preserveAspectRatio="none",
    )


def tooltip(text: str) -> Markup:
    """The tooltip of the element that has it as its child."""
    return element("title", text[:_LABEL_LIMIT])
