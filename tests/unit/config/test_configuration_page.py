"""docs/configuration.md is what the code says."""

from __future__ import annotations

from typing import get_args

import click

from forkq.cli.start import start
from forkq.cli.web import web
from forkq.config.config import KEYS, TYPES
from forkq.config.schema import base_of
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


def test_a_flag_takes_the_words_that_its_key_takes() -> None:
    choices = {name: get_args(base_of(TYPES[name])) for name in ("log.format", "log.level")}
    for name, words in choices.items():
        [flag] = [param for param in start.params if KEYS[name].flag in param.opts]
        assert isinstance(flag.type, click.Choice)
        assert tuple(flag.type.choices) == words


def test_a_description_is_one_sentence() -> None:
    for name, key in KEYS.items():
        assert key.about.endswith("."), name
        assert ". " not in key.about, name
