"""All keys under a prefix with a name in braces are in one slot of a Redis Cluster."""

from __future__ import annotations

import pytest

import forkq
from forkq.errors import ConfigError
from forkq.wire.redis_url import slot_of


@pytest.mark.parametrize(
    ("prefix", "slot"),
    [("{f}:", 3168), ("app:{f}:", 3168), ("{f}{g}", 3168), ("{123456789}", 12739)],
)
def test_the_first_name_in_braces_counts(prefix: str, slot: int) -> None:
    assert slot_of(prefix) == slot


@pytest.mark.parametrize(
    ("prefix", "line"),
    [
        ("", 'prefix = "{forkq}:"'),
        ("app:", 'prefix = "{app}:"'),
        ("{}:", 'prefix = "{forkq}:"'),
        ("{app:", 'prefix = "{app}:"'),
    ],
)
def test_a_prefix_without_a_name_in_braces_gets_the_line_to_write(prefix: str, line: str) -> None:
    with pytest.raises(ConfigError, match="needs a prefix") as caught:
        forkq.Client("cluster://localhost", prefix=prefix)
    assert line in str(caught.value)
