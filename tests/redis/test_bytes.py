"""What a job takes in Redis is what docs/scale.md says: measured on a server of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.bytes_page import JOBS, KINDS, PAGE, documented, measured, page
from tests.support.server import Server


@pytest.fixture
def alone() -> Iterator[Server]:
    """A server that no other program uses, and that writes no file."""
    server = Server().start()
    yield server
    server.close()


def test_each_kind_takes_what_the_page_says(alone: Server) -> None:
    """Of fewer jobs each, so the tables of Redis are of another size for each of them."""
    assert measured(alone, jobs=1500) == pytest.approx(documented(), rel=0.25)


@pytest.mark.slow
def test_ten_thousand_of_each_kind_take_what_the_page_says(alone: Server) -> None:
    assert measured(alone, jobs=JOBS) == pytest.approx(documented(), rel=0.1)


def test_the_page_has_a_row_for_each_kind() -> None:
    assert [*documented()] == [kind.name for kind in KINDS]
    assert page(documented()) == PAGE.read_text()


def test_a_plain_job_is_cheaper_than_any_with_a_feature() -> None:
    sizes = documented()
    assert all(sizes[kind.name] >= sizes[kind.beside] for kind in KINDS)
