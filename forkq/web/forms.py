"""The fields of a posted form, bounded."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request

_LARGEST: Final = 1_000_000  # bytes of a posted form
_MOST_FIELDS: Final = 10_000


class Form:
    """Names and values in the order in which the browser sent them."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self.pairs = pairs

    def get(self, name: str, default: str = "") -> str:
        """The first value of that name."""
        return next((value for key, value in self.pairs if key == name), default)

    def number(self, name: str) -> int:
        """The first value of that name as a number; 0 if it is none."""
        text = self.get(name)[:18]
        return int(text) if text.isascii() and text.isdigit() else 0

    def all(self, name: str) -> list[str]:
        """Every value of that name, such as those of checkboxes."""
        return [value for key, value in self.pairs if key == name]

    def without(self, *names: str) -> list[tuple[str, str]]:
        """All pairs of the form, but those of these names."""
        return [pair for pair in self.pairs if pair[0] not in names]


async def read_form(request: Request) -> Form:
    """The form of a request; empty if it has no body. Raises HTTPException if it is too large."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LARGEST:
            raise HTTPException(413, "The form is too large: select fewer jobs.")
    try:
        text = body.decode()
        return Form(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        raise HTTPException(400, "The form cannot be read.") from None
