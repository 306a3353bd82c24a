"""A flag is stronger than a variable, a variable stronger than the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkq.config.config import Config
from tests.support.config_files import Failer, Loader

FILE_TEXT = """
    [forkq]
    app = "from.file"
    timeout = 1
    pidfile = "/file.pid"
    environment = "file"
    tag = "file"
    preload = false
    workers = 9
    [redis]
    url = "redis://file"
    [log]
    level = "debug"
    format = "console"
    [capsules.default]
    queues = ["file"]
    concurrency = 1
    [environments.a]
"""


class TestPrecedence:
    """Each key that three layers can set: flag over variable over file over default."""

    LAYERS = (
        # key, names of flag and FORKQ_ variable, what they are given, what it becomes
        ("app", ("require", "REQUIRE"), (("a", "b"), "c, d"), (("a", "b"), ("c", "d"))),
        ("timeout", ("timeout", "TIMEOUT"), (3, "2.5"), (3.0, 2.5)),
        ("pidfile", ("pidfile", "PIDFILE"), ("/a.pid", "/b.pid"), (Path("/a.pid"), Path("/b.pid"))),
        ("environment", ("environment", "ENVIRONMENT"), ("a", "b"), ("a", "b")),
        ("tag", ("tag", "TAG"), ("a", "b"), ("a", "b")),
        ("workers", ("workers", "WORKERS"), (3, "2"), (3, 2)),
        ("redis.url", ("redis", "REDIS"), ("redis://a", "redis://b"), ("redis://a", "redis://b")),
        ("log.level", ("log_level", "LOG_LEVEL"), ("error", "warning"), ("error", "warning")),
        ("log.format", ("log_format", "LOG_FORMAT"), ("json", "logfmt"), ("json", "logfmt")),
        ("queues", ("queues", "QUEUES"), (("a,2", "b"), "c,3 d;e"),
         ((("a", 2), ("b", 1)), (("c", 3), ("d", 1), ("e", 1)))),
        ("concurrency", ("concurrency", "CONCURRENCY"), (3, "2"), (3, 2)),
    )  # fmt: skip

    @pytest.mark.parametrize(("key", "names", "given", "becomes"), LAYERS)
    def test_flag_variable_file_default(
        self, loaded: Loader, key: str, names: tuple[str, str],
        given: tuple[object, str], becomes: tuple[object, object],
    ) -> None:  # fmt: skip
        default = _value(loaded(), key)
        by_file = _value(loaded(FILE_TEXT), key)
        flags, environ = {names[0]: given[0]}, {f"FORKQ_{names[1]}": given[1]}
        assert _value(loaded(FILE_TEXT, flags, **environ), key) == becomes[0]
        assert _value(loaded(FILE_TEXT, **environ), key) == becomes[1]
        assert len({repr(value) for value in (default, by_file, *becomes)}) == 4

    def test_preload_by_variable(self, loaded: Loader) -> None:
        assert loaded("[forkq]\npreload = false", FORKQ_PRELOAD="true").preload is True
        assert loaded("[forkq]\npreload = true", FORKQ_PRELOAD="0").preload is False

    def test_an_empty_flag_or_variable_is_not_given(self, loaded: Loader) -> None:
        flags = {"require": (), "queues": (), "tag": "", "timeout": None}
        config = loaded(FILE_TEXT, flags, FORKQ_TAG="", FORKQ_TIMEOUT=" ", REDIS_URL="")
        assert (config.app, config.tag, config.timeout) == (("from.file",), "file", 1.0)
        assert config.redis.url == "redis://file"

    def test_a_zero_flag_is_given(self, loaded: Loader) -> None:
        assert loaded(FILE_TEXT, {"timeout": 0}).timeout == 0.0

    def test_redis_url_counts_after_forkq_redis_and_before_the_file(self, loaded: Loader) -> None:
        both = {"REDIS_URL": "redis://generic", "FORKQ_REDIS": "redis://own"}
        assert loaded(FILE_TEXT, **both).redis.url == "redis://own"
        assert loaded(FILE_TEXT, REDIS_URL="redis://generic").redis.url == "redis://generic"

    def test_a_variable_that_does_not_count_is_not_judged(self, loaded: Loader) -> None:
        assert loaded(None, {"redis": "embedded"}, REDIS_URL="http://x").redis.url == "embedded"

    def test_a_mistake_in_the_file_is_not_hidden_by_a_flag(self, problems: Failer) -> None:
        (line,) = problems("[forkq]\ntimeout = 'x'", {"timeout": 3})
        assert line.startswith("FILE: forkq.timeout: ")

    def test_an_overridden_value_of_the_file_needs_no_variable(self, loaded: Loader) -> None:
        text = '[redis]\nurl = "${LIVE}"'
        assert loaded(text, {"redis": "embedded"}).redis.url == "embedded"

    def test_each_value_knows_its_origin(self, loaded: Loader, tmp_path: Path) -> None:
        config = loaded(FILE_TEXT, {"tag": "a"}, FORKQ_TIMEOUT="2")
        keys = ("forkq.tag", "forkq.timeout", "redis.url", "redis.pool")
        assert [str(config.origin(key)) for key in keys] == [
            "--tag", "FORKQ_TIMEOUT", f"{tmp_path / 'forkq.toml'}: redis.url", "default",
        ]  # fmt: skip


class TestVariablesOfForkq:
    @pytest.mark.parametrize(
        ("name", "near"),
        [
            ("FORKQ_WORKER", "FORKQ_WORKERS"),
            ("FORKQ_LOGLEVEL", "FORKQ_LOG_LEVEL"),
            ("FORKQ_ENV", "FORKQ_ENVIRONMENT"),
            ("FORKQ_REDIS_URL", "FORKQ_REDIS"),
            ("FORKQ_CONF", "FORKQ_CONFIG"),
            ("FORKQ_QUEUE", "FORKQ_QUEUES"),
        ],
    )
    def test_a_typo_is_an_error_that_names_both(
        self, problems: Failer, name: str, near: str
    ) -> None:
        assert problems(None, None, **{name: "5"}) == [
            f"{name}: no such variable, the nearest one is {near}"
        ]

    @pytest.mark.parametrize(
        "name",
        ["FORKQ_DEMO_INPUT", "FORKQ_TEST_WORKER", "FORKQ_BENCH_QUEUES", "FORKQ_HOME", "WORKER"],
    )
    def test_other_peoples_variables_are_let_be(self, loaded: Loader, name: str) -> None:
        assert loaded(None, None, **{name: "x"}) == loaded()

    def test_a_variable_that_the_file_uses_is_no_typo(self, loaded: Loader) -> None:
        assert loaded('[forkq]\ntag = "${FORKQ_TAGS}"', FORKQ_TAGS="blue").tag == "blue"

    def test_a_wrong_value_names_the_variable(self, problems: Failer) -> None:
        assert problems(None, None, FORKQ_PRELOAD="yes") == [
            'FORKQ_PRELOAD: expected true or false, found the string "yes"'
        ]

    def test_a_wrong_flag_is_named_as_it_is_typed(self, problems: Failer) -> None:
        (queue,) = problems(None, {"queues": ("a", "b c")})
        assert queue.startswith('-q: "b c" is not a queue')
        (level,) = problems(None, {"log_level": "loud"})
        assert level.startswith('--log-level: expected one of "debug"')


def _value(config: Config, key: str) -> object:
    """``redis.url`` of a config; ``queues`` and ``concurrency`` of its one capsule."""
    if key in ("queues", "concurrency"):
        (capsule,) = config.capsules
        return getattr(capsule, key)
    value: object = config
    for part in key.split("."):
        value = getattr(value, part)
    return value
