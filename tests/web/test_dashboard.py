"""The first page."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from tests.web.browser import Browser


def test_it_shows_the_counts(web: TestClient) -> None:
    answer = web.get("/")
    assert answer.status_code == 200
    assert "processed" in answer.text


@pytest.mark.xdist_group("browser")
def test_a_browser_shows_it_without_an_error(browser: Browser) -> None:
    browser.open("/")
    assert browser.find("h1").text == "Dashboard"
    assert not browser.scrolls_sideways()
