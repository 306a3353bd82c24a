"""The address of Redis: which are accepted, and that no password is shown."""

from __future__ import annotations

import pytest

from forkq.wire.redis_url import redacted_url
from tests.support.config_files import Failer, Loader


class TestSecrets:
    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("redis://user:secret@host:1/2", "redis://user:***@host:1/2"),
            ("rediss://:secret@host", "rediss://:***@host"),
            ("redis://u:sec@ret/x@host/1", "redis://u:***@host/1"),
            ("unix:///x.sock?db=1&password=secret", "unix:///x.sock?db=1&password=***"),
            ("redis://h?password=secret&db=1", "redis://h?password=***&db=1"),
            ("user:secret@host:6379", "user:***@host:6379"),
            ("redis://us@er:secret@host", "redis://us@er:***@host"),
            ("redis://host:6379/0", "redis://host:6379/0"),
            ("redis://user@host", "redis://user@host"),
            ("embedded", "embedded"),
        ],
    )
    def test_redacted_url(self, url: str, shown: str) -> None:
        assert redacted_url(url) == shown

    def test_repr_of_a_config_has_none(self, loaded: Loader) -> None:
        assert "hunter2" not in repr(loaded(None, {"redis": "redis://u:hunter2@h"}))

    @pytest.mark.parametrize(
        "value",
        ['"http://u:hunter2@h"', '"redis://u:hunter2@h/ten"', '["redis://u:hunter2@h", 1]'],
    )
    def test_messages_have_none(self, problems: Failer, value: str) -> None:
        (line,) = problems(f"[redis]\nurl = {value}")
        assert "hunter2" not in line
        assert "u:***@h" in line


class TestRedisUrl:
    @pytest.mark.parametrize(
        "url",
        ["embedded", "redis://h", "redis://h/", "redis://h:1/15?protocol=3", "rediss://:p@h:1/0",
         "unix:///run/r.sock?db=2", "unix://u:p@/run/r.sock", "redis://[::1]:6379/0"],
    )  # fmt: skip
    def test_good(self, loaded: Loader, url: str) -> None:
        assert loaded(None, {"redis": url}).redis.url == url

    @pytest.mark.parametrize(
        "url",
        ["localhost:6379", "http://h", "redis://h:port", "redis://h:70000", "redis://h/ten",
         "redis://h/0/1", "unix://", "redis://[::1", "Embedded", "redis://a b", "redis://h#***"],
    )  # fmt: skip
    def test_bad(self, problems: Failer, url: str) -> None:
        (line,) = problems(None, {"redis": url})
        assert line.startswith("--redis: expected redis://HOST:PORT/DB")
        assert line.endswith(f'found "{url}"')


@pytest.mark.parametrize(
    "text",
    [
        '[rates]\nmail = "{}"',
        '[redis]\n"{}" = 1',
        '[[cron]]\njob = "A"\ncron = "{}"',
        '[[cron]]\njob = "A"\ncron = "@daily"\ntz = "{}"',
        '[capsules.default]\nqueues = ["{}"]\nconcurrency = 0',
        '[log]\nlevel = "{}"',
        '[forkq]\nworkers = "{}"',
    ],
)
def test_a_password_in_the_wrong_place_is_not_repeated(problems: Failer, text: str) -> None:
    lines = problems(text.format("redis://:sesame@h/0"))
    assert lines
    assert "sesame" not in "".join(lines)
