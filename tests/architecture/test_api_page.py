"""docs/api.md is what tests.support.api_page makes from the docstrings."""

from __future__ import annotations

from tests.support.api_page import PAGE, page


def test_the_page_of_the_api_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run `python -m tests.support.api_page`"
