"""docs/configuration.md is what the code says."""

from __future__ import annotations

from forkq.cli.start import start
from forkq.cli.web import web
from forkq.config.config import KEYS
from tests.support.configuration_page import PAGE, page


def test_the_page_is_up_to_date() -> None:
    remedy = "run: python -m tests.support.configuration_page"
    assert PAGE.read_text(encoding="utf-8") == page(), remedy


def test_every_flag_exists() -> None:
    """`forkq start` or `forkq web` has it, and parses it under the name that the configuration
    reads."""
    for name, key in KEYS.items():
        command = web if name.startswith("web.") else start
        options = {option: given.name for given in command.params for option in given.opts}
        assert not key.flag or options[key.flag] == key.parsed_as


def test_a_description_is_one_sentence() -> None:
    for name, key in KEYS.items():
        assert key.about.endswith("."), name
        assert ". " not in key.about, name
