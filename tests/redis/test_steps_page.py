"""The example of docs/steps.md does what the page says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import forkq
from forkq import middleware, registry, testing
from tests.support.documents import ROOT, snippets

CODE = [each.text for each in snippets(ROOT / "docs" / "steps.md", "python")]


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of the page, whose first job has run as far as it comes."""
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    names: dict[str, Any] = {"__name__": "shop"}
    exec(CODE[0], names)  # noqa: S102 - the page's own code
    return names


def test_an_order_is_charged_approved_and_shipped(
    shop: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with testing.fake() as jobs:
        exec(CODE[1], shop)  # noqa: S102
        jobs.drain()
        assert [job.args for job in jobs.performed] == [[7, 1999]]
    told = capsys.readouterr().out.splitlines()
    assert [line.split(" with")[0] for line in told] == [
        "charge 7 1999",
        "ship 7 approved by ann",
    ]


def test_an_order_that_no_one_approves_is_refunded(
    shop: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with testing.fake() as jobs:
        shop["fulfil"].perform_async(9, 5)
        jobs.drain()
    assert capsys.readouterr().out.splitlines()[1:] == ["refund receipt-9"]


def test_what_the_page_says_of_tests_and_keys(shop: dict[str, Any]) -> None:
    for code in CODE[2:]:
        exec(code, shop)  # noqa: S102

    @forkq.job(name="pays")
    def pays() -> None:
        forkq.step("pay", shop["pay"], 3)

    with testing.fake() as jobs:
        pays.perform_async()
        jobs.drain()
    assert Path(ROOT / "docs" / "steps.md").read_text().count("```python") == len(CODE) == 4
