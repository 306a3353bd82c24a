"""The configuration: precedence, environments, variables, and messages that help."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from forkq.cli.config import config as config_command
from forkq.config.capsule import Capsule
from forkq.config.config import TABLES, Config, LogSettings, RedisSettings
from forkq.config.cron_tables import ROWS
from forkq.config.load import load
from forkq.cron.entry import Entry
from forkq.errors import ConfigError
from forkq.wire.redis_url import redacted_url

EXAMPLE = Path(__file__).parents[3] / "deploy" / "forkq.toml"


def _keys(table: object) -> list[str]:
    assert isinstance(table, Mapping)
    return list(table)


Loader = Callable[..., Config]
Failer = Callable[..., list[str]]


@pytest.fixture
def loaded(tmp_path: Path) -> Loader:
    """Loads a text as ./forkq.toml, with flags and variables."""

    def load_text(
        text: str | None = None, flags: Mapping[str, Any] | None = None, **environ: str
    ) -> Config:
        if text is not None:
            (tmp_path / "forkq.toml").write_text(text, encoding="utf-8")
        return load(None, flags or {}, environ, tmp_path)

    return load_text


@pytest.fixture
def problems(loaded: Loader, tmp_path: Path) -> Failer:
    """Loads what must fail; the lines of the message, the file's own path shortened to FILE."""

    def fail(
        text: str | None = None, flags: Mapping[str, Any] | None = None, **environ: str
    ) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            loaded(text, flags, **environ)
        assert caught.value.exit_code == 2
        return str(caught.value).replace(str(tmp_path / "forkq.toml"), "FILE").splitlines()

    return fail


class TestDefaults:
    def test_no_config_at_all(self, loaded: Loader) -> None:
        config = loaded()
        assert config.capsules == (Capsule("default", (("default", 0),), 5, 1),)
        assert config.timeout == 25.0
        assert config.redis == RedisSettings(url="redis://localhost:6379/0")
        assert config.log == LogSettings(level="info", format="auto")
        assert config.source is None

    def test_an_empty_file_changes_nothing_but_the_source(self, loaded: Loader) -> None:
        without = loaded()
        config = loaded("")
        assert dataclasses.replace(config, source=None) == without
        assert config.source is not None

    def test_a_config_is_frozen(self, loaded: Loader) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            loaded().timeout = 1.0  # type: ignore[misc]


class TestEveryKey:
    TEXT = """
        [forkq]
        app = ["app.jobs", "./more.py"]
        timeout = 7
        pidfile = "run/x.pid"
        environment = "staging"
        tag = "shop"
        labels = ["blue", "eu"]
        preload = true
        boot_timeout = 60
        workers = 3
        strict_args = "warn"
        dead_max = 500
        dead_days = 2.5
        silent_after = 12.5
        state_dir = "/srv/state"
        [redis]
        url = "rediss://u:p@db:6380/4"
        prefix = "shop:"
        pool = 20
        connect_timeout = 0.5
        timeout = 1
        [log]
        level = "error"
        format = "json"
        [capsules.default]
        queues = ["critical,5", ["low", 1]]
        concurrency = 10
        workers = 2
        [capsules.serial]
        queues = "exports"
        [[cron]]
        name = "nightly"
        cron = "*/30 0 2 * * *"
        tz = "Europe/Berlin"
        job = "Report"
        args = ["a", {b = [1, 2.5, true]}]
        queue = "low"
        overlap = "skip"
        missed = 5
        jitter = 2.5
        enabled = false
        [[cron]]
        job = "Tidy"
        cron = "@hourly"
    """

    def test_arrives(self, loaded: Loader, tmp_path: Path) -> None:
        assert loaded(self.TEXT) == Config(
            app=("app.jobs", "./more.py"),
            timeout=7.0,
            pidfile=tmp_path / "run" / "x.pid",
            environment="staging",
            tag="shop",
            labels=("blue", "eu"),
            preload=True,
            boot_timeout=60.0,
            workers=3,
            strict_args="warn",
            dead_max=500,
            dead_days=2.5,
            silent_after=12.5,
            cron=(
                Entry.make(
                    name="nightly", cron="*/30 0 2 * * *", tz="Europe/Berlin",
                    job={"class": "Report", "args": ["a", {"b": [1, 2.5, True]}], "queue": "low"},
                    overlap="skip", missed=5, jitter=2.5, enabled=False,
                ),
                Entry.make(name="Tidy", cron="@hourly", job={"class": "Tidy", "args": []}),
            ),
            state_dir=Path("/srv/state"),
            redis=RedisSettings(
                url="rediss://u:p@db:6380/4", prefix="shop:", pool=20, connect_timeout=0.5,
                timeout=1.0,
            ),
            log=LogSettings(level="error", format="json"),
            capsules=(
                Capsule("default", (("critical", 5), ("low", 1)), 10, 2),
                Capsule("serial", (("exports", 0),), 5, 3),
            ),
            source=tmp_path / "forkq.toml",
        )  # fmt: skip

    def test_a_single_app_is_a_string(self, loaded: Loader) -> None:
        assert loaded('[forkq]\napp = "app.jobs"').app == ("app.jobs",)

    @pytest.mark.parametrize(
        ("key", "value", "expected"),
        [
            ("forkq.app", "[1]", "a list of strings, found a list with the whole number 1"),
            ("forkq.app", '[""]', 'a list of strings, found a list with the string ""'),
            ("forkq.timeout", '"25s"', 'a number from 0 to 86400, found the string "25s"'),
            ("forkq.timeout", "-1", "a number from 0 to 86400, found the whole number -1"),
            ("forkq.timeout", "nan", "a number from 0 to 86400, found the number nan"),
            ("forkq.timeout", "86401", "a number from 0 to 86400, found the whole number 86401"),
            ("forkq.pidfile", "7", "a path, found the whole number 7"),
            ("forkq.pidfile", '""', 'a path, found the string ""'),
            ("forkq.pidfile", '"~no-such-user/x"', 'a path, found the string "~no-such-user/x"'),
            ("forkq.environment", '"a b"', 'a name without spaces, found the string "a b"'),
            ("forkq.environment", "[]", "a name without spaces, found an empty list"),
            (
                "forkq.tag",
                "1979-05-27",
                "a string of at most 64 characters, found the date or time",
            ),
            ("forkq.tag", f'"{"x" * 65}"', "a string of at most 64 characters, found the string"),
            ("forkq.labels", "true", "a list of strings, found the truth value true"),
            ("forkq.preload", '"yes"', 'true or false, found the string "yes"'),
            ("forkq.preload", "1", "true or false, found the whole number 1"),
            ("forkq.boot_timeout", "-1", "a number from 0 to 86400, found the whole number -1"),
            ("forkq.workers", "0", "a whole number from 1 to 512, found the whole number 0"),
            ("forkq.workers", "513", "a whole number from 1 to 512, found the whole number 513"),
            ("forkq.workers", "2.0", "a whole number from 1 to 512, found the number 2.0"),
            ("forkq.workers", "true", "a whole number from 1 to 512, found the truth value true"),
            ("forkq.strict_args", '"yes"', 'one of "raise", "warn", "off", found the string "yes"'),
            ("forkq.dead_max", "-1", "a whole number from 0 to 100000000, found the whole number"),
            ("forkq.dead_days", "{}", "a number from 0 to 36500, found a table"),
            ("forkq.silent_after", "0", "a number from 1 to 86400, found the whole number 0"),
            ("forkq.state_dir", "[]", "a path, found an empty list"),
            ("redis.url", "6379", "a string, found the whole number 6379"),
            ("redis.url", '"http://db"', "redis://HOST:PORT/DB, rediss://"),
            ("redis.prefix", "1", "a string, found the whole number 1"),
            ("redis.pool", "0", "a whole number from 1 to 1000, found the whole number 0"),
            ("redis.connect_timeout", "0", "a number from 0.001 to 3600, found the whole number 0"),
            ("redis.timeout", '"5"', 'a number from 0.001 to 3600, found the string "5"'),
            ("log.level", '"INFO"', 'one of "debug", "info", "warning", "error", found the string'),
            ("log.format", '"xml"', 'one of "auto", "console", "json", "logfmt", found the string'),
            ("capsules.a.queues", "5", "a list of queues, each"),
            ("capsules.a.queues", '[["a", 1, 2]]', "a list of queues, each"),
            ("capsules.a.queues", '[["a", "1"]]', "a list of queues, each"),
            ("capsules.a.queues", "[]", "at least one queue, found none"),
            ("capsules.a.queues", '["a b"]', "NAME or NAME,WEIGHT"),
            ("capsules.a.queues", '[["a", 0]]', "NAME or NAME,WEIGHT"),
            ("capsules.a.concurrency", "0", "a whole number from 1 to 1000, found the whole"),
            ("capsules.a.concurrency", "1001", "a whole number from 1 to 1000, found the whole"),
            ("capsules.a.workers", '"2"', 'a whole number from 1 to 512, found the string "2"'),
        ],
    )
    def test_a_wrong_value_names_file_key_expectation_and_what_was_found(
        self, problems: Failer, key: str, value: str, expected: str
    ) -> None:
        path, _, name = key.rpartition(".")
        (line,) = problems(f"[{path}]\n{name} = {value}")
        assert line.startswith(f"FILE: {key}: ")
        assert f"expected {expected}" in line

    def test_every_key_is_covered_above(self) -> None:
        """A key added to the config must be added to these tests."""
        names = {name for table in ("forkq", "redis", "log") for name in _keys(TABLES[table])}
        names |= set(_keys(ROWS.item))
        assert all(re.search(rf"^\s*{name} = ", self.TEXT, re.MULTILINE) for name in names)


class TestUnknownKeys:
    def test_name_the_file_the_path_the_nearest_key_and_the_valid_ones(
        self, problems: Failer
    ) -> None:
        (line,) = problems("[redis]\npol = 5")
        assert line == (
            "FILE: redis.pol: unknown key, the nearest valid one is redis.pool "
            "(valid here: url, prefix, pool, connect_timeout, timeout)"
        )

    @pytest.mark.parametrize(
        ("text", "path", "near"),
        [
            ("[forkq]\ntime_out = 5", "forkq.time_out", "forkq.timeout"),
            ("[forkq]\nPreload = true", "forkq.Preload", "forkq.preload"),
            ("[capsule.a]\nqueues = []", "capsule", "capsules"),
            ("[capsules.a]\nqueue = 'x'", "capsules.a.queue", "capsules.a.queues"),
            ("[environment.x.log]", "environment", "environments"),
            ("[environments.x.logs]", "environments.x.logs", "environments.x.log"),
            (
                "[environments.x.capsules.a]\nconcurency = 1",
                "environments.x.capsules.a.concurency",
                "environments.x.capsules.a.concurrency",
            ),
        ],
    )
    def test_in_every_table(self, problems: Failer, text: str, path: str, near: str) -> None:
        (line,) = problems(text)
        assert line.startswith(f"FILE: {path}: unknown key, the nearest valid one is {near} (")

    def test_a_key_in_the_wrong_table_is_sent_to_the_right_one(self, problems: Failer) -> None:
        lines = problems("timeout = 5\n[forkq]\nconcurrency = 3")
        assert lines[0].startswith("FILE: timeout: unknown key here, it belongs to forkq.timeout (")
        assert "it belongs to capsules.NAME.concurrency (" in lines[1]

    def test_a_key_like_no_other_lists_the_valid_ones(self, problems: Failer) -> None:
        (line,) = problems("[log]\nzzz = 1")
        assert line == "FILE: log.zzz: unknown key (valid here: level, format)"

    def test_a_key_that_needs_quotes_is_shown_with_them(self, problems: Failer) -> None:
        (line,) = problems('[log]\n"a.b" = 1')
        assert line.startswith('FILE: log."a.b": unknown key')

    def test_all_problems_come_at_once(self, problems: Failer) -> None:
        lines = problems(
            "[forkq]\ntimeout = 'x'\n[redis]\npol = 1\n[capsules.clock]\nqueues = ['a', 'a']",
            {"workers": 0},
            FORKQ_CONCURRENCY="many",
        )
        assert [line.split(": ")[:2] for line in lines[2:]] == [
            ["FILE", "forkq.timeout"],
            ["FILE", "redis.pol"],
            ["FILE", "capsules.clock"],
            ["FILE", "capsules.clock.queues"],
        ]
        assert lines[0].startswith("--workers: expected a whole number from 1 to 512, found the")
        assert lines[1].startswith("FORKQ_CONCURRENCY: expected a whole number from 1 to 1000")

    @pytest.mark.parametrize("text", ["redis = 5", "capsules = []", "[capsules]\na = 'x'"])
    def test_a_value_where_a_table_belongs(self, problems: Failer, text: str) -> None:
        (line,) = problems(text)
        assert "expected a table, found" in line


class TestFile:
    def test_a_named_file_that_is_missing_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"nope\.toml: no such file \(-C names it\)"):
            load(Path("nope.toml"), {}, {}, tmp_path)
        with pytest.raises(ConfigError, match=r"nope\.toml: no such file \(FORKQ_CONFIG names"):
            load(None, {}, {"FORKQ_CONFIG": "nope.toml"}, tmp_path)

    def test_c_before_forkq_config_before_forkq_toml(self, tmp_path: Path) -> None:
        for name in ("flag", "variable", "forkq"):
            (tmp_path / f"{name}.toml").write_text(f'[forkq]\ntag = "{name}"')
        environ = {"FORKQ_CONFIG": "variable.toml"}
        assert load(Path("flag.toml"), {}, environ, tmp_path).tag == "flag"
        assert load(None, {"config": "flag.toml"}, environ, tmp_path).tag == "flag"
        assert load(None, {}, environ, tmp_path).tag == "variable"
        config = load(None, {}, {}, tmp_path)
        assert (config.tag, config.source) == ("forkq", tmp_path / "forkq.toml")

    def test_bad_toml_names_file_and_line(self, problems: Failer) -> None:
        (line,) = problems("[forkq]\ntimeout = = 5")
        assert line.startswith("FILE: not valid TOML: ")
        assert "line 2" in line

    @pytest.mark.parametrize("value", ["1" * 5000, "[" * 50_000])
    def test_toml_that_overwhelms_the_reader(self, problems: Failer, value: str) -> None:
        (line,) = problems(f"[forkq]\ntimeout = {value}")
        assert line.startswith("FILE: ")

    def test_a_file_that_is_not_utf8(self, tmp_path: Path) -> None:
        (tmp_path / "forkq.toml").write_bytes(b'[forkq]\ntag = "\xff"')
        with pytest.raises(ConfigError, match=r"forkq\.toml: not UTF-8 at byte 15"):
            load(None, {}, {}, tmp_path)

    def test_a_folder_is_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
            load(tmp_path, {}, {}, tmp_path)


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


class TestEnvironments:
    TEXT = """
        [forkq]
        timeout = 10
        tag = "base"
        [redis]
        url = "redis://base"
        pool = 3
        [capsules.default]
        queues = ["a", "b"]
        concurrency = 2
        [environments.production.forkq]
        timeout = 60
        [environments.production.redis]
        url = "${PRODUCTION_REDIS}"
        [environments.production.capsules.default]
        queues = ["c"]
        [environments.production.capsules.bulk]
        queues = ["z"]
    """

    def test_only_the_active_one_counts(self, loaded: Loader) -> None:
        config = loaded(self.TEXT)
        assert (config.timeout, config.redis.url) == (10.0, "redis://base")
        assert [capsule.name for capsule in config.capsules] == ["default"]

    def test_is_merged_key_by_key_and_lists_are_replaced(self, loaded: Loader) -> None:
        config = loaded(self.TEXT, {"environment": "production"}, PRODUCTION_REDIS="redis://live")
        assert (config.timeout, config.tag) == (60.0, "base")
        assert config.redis == RedisSettings(url="redis://live", pool=3)
        assert config.capsules == (
            Capsule("default", (("c", 0),), 2, 1),
            Capsule("bulk", (("z", 0),), 5, 1),
        )

    def test_the_file_can_choose_it_by_a_variable(self, loaded: Loader) -> None:
        text = '[forkq]\nenvironment = "${STAGE:-a}"\n[environments.b.forkq]\ntag = "b"'
        assert loaded(text).tag == ""
        assert loaded(text, STAGE="b").tag == "b"

    def test_a_mistake_in_an_inactive_one_is_found(self, problems: Failer) -> None:
        (line,) = problems("[environments.production.forkq]\ntimeout = 'x'")
        assert line.startswith("FILE: environments.production.forkq.timeout: expected a number")

    def test_a_mistake_in_the_active_one_is_told_once_and_where_it_is(
        self, problems: Failer
    ) -> None:
        text = "[redis]\npool = 5\n[environments.production.redis]\npool = '${POOL}'"
        (line,) = problems(text, {"environment": "production"}, POOL="many")
        assert line.startswith("FILE: environments.production.redis.pool: expected a whole number")

    def test_an_overridden_value_needs_no_variable(self, loaded: Loader) -> None:
        text = '[redis]\nurl = "${LIVE}"\n[environments.development.redis]\nurl = "embedded"'
        assert loaded(text).redis.url == "embedded"

    def test_a_misspelt_one_is_an_error(self, problems: Failer) -> None:
        (line,) = problems("[environments.production.log]", {"environment": "prodution"})
        assert "there is none called prodution, the nearest one is production" in line

    def test_one_without_a_table_is_fine(self, loaded: Loader) -> None:
        text = "[environments.production.log]"
        assert loaded(text, {"environment": "ci"}).environment == "ci"

    def test_it_cannot_name_another(self, problems: Failer) -> None:
        (line,) = problems('[environments.a.forkq]\nenvironment = "b"')
        assert line.startswith("FILE: environments.a.forkq.environment: unknown key here")


class TestExpansion:
    @pytest.mark.parametrize(
        ("text", "environ", "value"),
        [
            ("${A}", {"A": "x"}, "x"),
            ("${A}", {"A": ""}, ""),
            ("a-${A}-${B}", {"A": "x", "B": "y"}, "a-x-y"),
            ("${A:-d}", {}, "d"),
            ("${A:-d}", {"A": ""}, "d"),
            ("${A:-d}", {"A": "x"}, "x"),
            ("${A:-}", {}, ""),
            ("${A:-redis://h:1/2?x=y}", {}, "redis://h:1/2?x=y"),
            ("$${A}", {}, "${A}"),
            ("$A $ {A}", {"A": "x"}, "$A $ {A}"),
            ("${A}", {"A": "${B}"}, "${B}"),
        ],
    )
    def test_forms(self, loaded: Loader, text: str, environ: dict[str, str], value: str) -> None:
        assert loaded(f"[forkq]\ntag = '{text}'", **environ).tag == value

    def test_in_lists(self, loaded: Loader) -> None:
        text = "[forkq]\nlabels = ['${A}']\n[capsules.a]\nqueues = ['${A},2', ['${A}-low', 1]]"
        config = loaded(text, A="x")
        assert config.labels == ("x",)
        assert config.capsules[0].queues == (("x", 2), ("x-low", 1))

    def test_numbers_and_truth_values_can_come_from_variables(self, loaded: Loader) -> None:
        config = loaded('[forkq]\nworkers = "${N:-4}"\ntimeout = "${T}"\npreload = "${P}"',
                        T="2.5", P="true")  # fmt: skip
        assert (config.workers, config.timeout, config.preload) == (4, 2.5, True)

    def test_an_unset_variable_is_named_with_file_and_key(self, problems: Failer) -> None:
        (line,) = problems('[redis]\nurl = "redis://:${DB_PASSWORD}@db"')
        assert line.startswith("FILE: redis.url: the variable DB_PASSWORD is not set")

    def test_all_unset_variables_are_told(self, problems: Failer) -> None:
        lines = problems("[forkq]\ntag = '${A_TAG}'\nlabels = ['x', '${A_LABEL}']")
        assert ["A_TAG" in lines[0], "A_LABEL" in lines[1], len(lines)] == [True, True, 2]

    @pytest.mark.parametrize("text", ["${", "${A", "${1}", "${A-b}", "${}", "${A:-${B}}"])
    def test_what_cannot_be_read_is_an_error(self, problems: Failer, text: str) -> None:
        (line,) = problems(f"[environments.other.forkq]\ntag = '{text}'", A="x", B="y")
        assert line.startswith("FILE: environments.other.forkq.tag: a ${ that cannot be read")


class TestCapsules:
    @pytest.mark.parametrize(
        ("queues", "pairs", "mode"),
        [
            ('["a", "b"]', (("a", 0), ("b", 0)), "strict"),
            ('["a,1", "b,1"]', (("a", 1), ("b", 1)), "random"),
            ('["a,5", "b,1"]', (("a", 5), ("b", 1)), "weighted"),
            ('[["a", 5], ["b", 1]]', (("a", 5), ("b", 1)), "weighted"),
            ('["a,5", "b", ["c", 2]]', (("a", 5), ("b", 1), ("c", 2)), "weighted"),
            ('"tenant-*"', (("tenant-*", 0),), "strict"),
        ],
    )
    def test_spellings_of_queues(
        self, loaded: Loader, queues: str, pairs: tuple[tuple[str, int], ...], mode: str
    ) -> None:
        (capsule,) = loaded(f"[capsules.x]\nqueues = {queues}").capsules
        assert (capsule.queues, capsule.mode) == (pairs, mode)

    def test_stay_in_the_order_of_the_file(self, loaded: Loader) -> None:
        text = "".join(f"[capsules.{name}]\nqueues = ['{name}']\n" for name in "qzamb")
        assert [capsule.name for capsule in loaded(text).capsules] == list("qzamb")

    def test_their_own_workers_win_over_everything(self, loaded: Loader) -> None:
        text = "[capsules.a]\nqueues='a'\nworkers=4\n[capsules.b]\nqueues='b'"
        assert [c.workers for c in loaded(text, {"workers": 2}).capsules] == [4, 2]

    def test_the_default_capsule_needs_no_queues(self, loaded: Loader) -> None:
        (capsule,) = loaded("[capsules.default]\nconcurrency = 3").capsules
        assert capsule == Capsule("default", (("default", 0),), 3, 1)

    def test_any_other_does(self, problems: Failer) -> None:
        (line,) = problems("[capsules.bulk]\nconcurrency = 3")
        assert line.startswith("FILE: capsules.bulk.queues: missing, expected a list of queues")

    @pytest.mark.parametrize("name", ["clock", '"a b"', '"x*"'])
    def test_bad_names(self, problems: Failer, name: str) -> None:
        (line,) = problems(f"[capsules.{name}]\nqueues = 'a'")
        assert line.startswith(f"FILE: capsules.{name}: ")

    def test_q_and_c_are_for_the_capsule_default(self, loaded: Loader) -> None:
        text = "[capsules.default]\nqueues='a'\n[capsules.b]\nqueues='b'"
        first, second = loaded(text, {"queues": ("x",), "concurrency": 9}).capsules
        assert first == Capsule("default", (("x", 0),), 9, 1)
        assert second == Capsule("b", (("b", 0),), 5, 1)

    def test_or_for_the_only_one(self, loaded: Loader) -> None:
        (capsule,) = loaded("[capsules.b]\nqueues='b'", {"concurrency": 9}).capsules
        assert capsule == Capsule("b", (("b", 0),), 9, 1)

    def test_or_q_adds_one(self, loaded: Loader) -> None:
        text = "[capsules.a]\nqueues='a'\n[capsules.b]\nqueues='b'"
        capsules = loaded(text, FORKQ_QUEUES="x,2", FORKQ_CONCURRENCY="9").capsules
        assert capsules[2] == Capsule("default", (("x", 2),), 9, 1)

    def test_c_alone_is_refused_where_it_could_mean_any(self, problems: Failer) -> None:
        text = "[capsules.a]\nqueues='a'\n[capsules.b]\nqueues='b'"
        (line,) = problems(text, {"concurrency": 9})
        assert "of which capsule? The file has a, b" in line


class TestCron:
    """``[[cron]]``: rows, counted from 0."""

    ROW = '[[cron]]\njob = "A"\ncron = "@daily"\n'

    @pytest.mark.parametrize(
        ("key", "value", "expected"),
        [
            ("name", '""', "expected a name of 1 to 128 printable characters"),
            ("name", '" a"', "expected a name of 1 to 128 printable characters"),
            ("name", "5", "expected a string, found the whole number 5"),
            ("cron", '"61 * * * *"', "cron expression '61 * * * *': minute is '61'; expected 0 to"),
            ("cron", '"* * *"', "expected five fields"),
            ("cron", "5", "expected a cron expression, found the whole number 5"),
            ("tz", '"Berlin"', "no time zone 'Berlin', the nearest one is 'Europe/Berlin'"),
            ("tz", '"localtime"', "'localtime' means another time on each machine"),
            ("job", '""', 'expected the name of a job, found the string ""'),
            ("args", '"a"', 'expected a list of arguments, found the string "a"'),
            ("args", "[1, {a = [1979-05-27]}]", "found the date or time 1979-05-27; write it in"),
            ("args", "[07:32:00]", "found the date or time 07:32:00; write it in quotes"),
            ("args", "[nan]", "expected values that JSON has, found the number nan"),
            ("args", "[-inf]", "expected values that JSON has, found the number -inf"),
            ("queue", '""', 'expected the name of a queue, found the string ""'),
            ("overlap", '"no"', 'expected one of "skip", "allow", found the string "no"'),
            ("missed", '"all"', 'expected "skip", "once" or a whole number from 0 to 1000, found'),
            ("missed", "1001", 'expected "skip", "once" or a whole number from 0 to 1000, found'),
            ("missed", "true", 'expected "skip", "once" or a whole number from 0 to 1000, found'),
            ("jitter", "-1", "expected a number from 0 to 86400, found the whole number -1"),
            ("enabled", '"yes"', 'expected true or false, found the string "yes"'),
        ],
    )
    def test_a_wrong_value_is_told_with_its_row_and_key(
        self, problems: Failer, key: str, value: str, expected: str
    ) -> None:
        row = "".join(line + "\n" for line in self.ROW.splitlines() if not line.startswith(key))
        (line,) = problems(f'[[cron]]\njob = "B"\ncron = "@daily"\n{row}{key} = {value}')
        assert line.startswith(f"FILE: cron[1].{key}: ")
        assert expected in line

    def test_all_problems_of_all_rows_come_at_once(self, problems: Failer) -> None:
        lines = problems(
            '[[cron]]\njob = "A"\ncron = "* * 0 * *"\ntz = "x/y"\n[[cron]]\ncorn = "@daily"\n'
            '[[environments.production.cron]]\njob = "B"\n'
        )
        assert [line.split(": ")[1] for line in lines] == [
            "cron[0].cron",
            "cron[0].tz",
            "cron[1].corn",
            "cron[1].cron",
            "cron[1].job",
            "environments.production.cron[0].cron",
        ]
        assert "the nearest valid one is cron[1].cron (valid here: name, cron, tz, job" in lines[2]
        assert lines[3].endswith("missing, expected a cron expression")

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("[cron]\njob = 'A'", "cron: expected a list of tables, each [[cron]], found a table"),
            ("cron = 'x'", 'cron: expected a list of tables, each [[cron]], found the string "x"'),
            ("cron = ['x']", 'cron[0]: expected a table, found the string "x"'),
        ],
    )
    def test_what_is_no_list_of_tables(self, problems: Failer, text: str, expected: str) -> None:
        assert problems(text) == [f"FILE: {expected}"]

    def test_two_of_one_name_are_refused(self, problems: Failer) -> None:
        named = '[[cron]]\nname = "A"\njob = "B"\ncron = "@daily"'
        assert problems(f"{self.ROW}{named}") == [
            "FILE: cron[1]: 'A' is the name of cron[0] too; give one of them another name"
        ]

    def test_names_that_variables_tell_apart_are_two(self, loaded: Loader) -> None:
        text = "".join(f"{self.ROW}name = '${{{name}}}'\n" for name in ("ONE", "TWO"))
        assert [entry.name for entry in loaded(text, ONE="1", TWO="2").cron] == ["1", "2"]

    def test_variables_are_expanded_in_every_value(self, loaded: Loader) -> None:
        text = """
            [[cron]]
            job = "${JOB}"
            cron = "${MINUTE:-5} * * * *"
            args = ["${JOB}", {deep = ["${JOB}"]}, "$${JOB}"]
            missed = "${MISSED}"
            enabled = "${ENABLED:-false}"
        """
        (entry,) = loaded(text, JOB="A", MISSED="7").cron
        assert entry == Entry.make(
            name="A", cron="5 * * * *", missed=7, enabled=False,
            job={"class": "A", "args": ["A", {"deep": ["A"]}, "${JOB}"]},
        )  # fmt: skip

    def test_an_unset_variable_deep_in_the_arguments_is_named(self, problems: Failer) -> None:
        (line,) = problems(self.ROW + 'args = [{deep = ["${NOPE}"]}]')
        assert line.startswith("FILE: cron[0].args: the variable NOPE is not set")

    def test_an_environment_replaces_the_whole_list(self, loaded: Loader) -> None:
        text = self.ROW + self.ROW.replace("cron]", "environments.b.cron]").replace('"A"', '"B"')
        assert [entry.name for entry in loaded(text).cron] == ["A"]
        assert [entry.name for entry in loaded(text, {"environment": "b"}).cron] == ["B"]

    def test_a_mistake_there_is_told_once_and_where_it_is(self, problems: Failer) -> None:
        text = self.ROW + '[[environments.b.cron]]\njob = "B"\ncron = "${WHEN}"'
        (line,) = problems(text, {"environment": "b"}, WHEN="never")
        assert line.startswith("FILE: environments.b.cron[0].cron: cron expression 'never': ")

    def test_config_check_shows_each_with_its_next_run_in_its_own_zone(
        self, tmp_path: Path
    ) -> None:
        file = tmp_path / "forkq.toml"
        file.write_text(
            f'{self.ROW}tz = "Asia/Tokyo"\n[[cron]]\nname = "off"\njob = "B"\n'
            'cron = "0 0 29 2 *"\nenabled = false'
        )
        shown = CliRunner().invoke(config_command, ["check", "-C", str(file)])
        assert shown.exit_code == 0
        first, second = [line for line in shown.output.splitlines() if line.startswith("cron ")]
        assert re.fullmatch(
            r"cron +A: @daily Asia/Tokyo, next \w{3} \d{4}-\d\d-\d\d 00:00:00 JST", first
        )
        assert second.endswith("off: B, 0 0 29 2 * UTC, next never (enabled = false)")

    def test_config_check_refuses_with_exit_code_2(self, tmp_path: Path) -> None:
        (tmp_path / "x.toml").write_text(f'{self.ROW}tz = "Mars"')
        done = CliRunner().invoke(config_command, ["check", "-C", str(tmp_path / "x.toml")])
        assert isinstance(done.exception, ConfigError)
        assert done.exception.exit_code == 2


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
         "redis://h/0/1", "unix://", "redis://[::1", "Embedded", "redis://a b", "redis://h#x"],
    )  # fmt: skip
    def test_bad(self, problems: Failer, url: str) -> None:
        (line,) = problems(None, {"redis": url})
        assert line.startswith("--redis: expected redis://HOST:PORT/DB")
        assert line.endswith(f'found "{url}"')


class TestPlaces:
    def test_systemds_folders_come_first(self, loaded: Loader) -> None:
        config = loaded(None, RUNTIME_DIRECTORY="/run/shop:/run/x", STATE_DIRECTORY="/var/lib/shop")
        assert config.pidfile == Path("/run/shop/forkq.pid")
        assert config.state_dir == Path("/var/lib/shop")

    def test_then_the_users_with_a_name_for_directory_and_tag(
        self, loaded: Loader, tmp_path: Path
    ) -> None:
        runtime = tmp_path / "run"
        runtime.mkdir()
        environ = {"XDG_RUNTIME_DIR": str(runtime), "XDG_STATE_HOME": "/state"}
        plain, tagged = loaded(None, **environ), loaded(None, {"tag": "a/b c"}, **environ)
        assert plain.pidfile.parent == tagged.pidfile.parent == runtime / "forkq"
        folder = re.escape(re.sub(r"[^A-Za-z0-9_.-]+", "-", tmp_path.name)[:64].strip(".-"))
        assert re.fullmatch(rf"{folder}-[0-9a-f]{{8}}\.pid", plain.pidfile.name)
        assert re.fullmatch(r"a-b-c-[0-9a-f]{8}\.pid", tagged.pidfile.name)
        assert plain.state_dir == Path("/state/forkq") / plain.pidfile.stem
        assert tagged.state_dir == Path("/state/forkq") / tagged.pidfile.stem

    def test_tags_that_look_alike_in_a_file_name_stay_apart(self, loaded: Loader) -> None:
        pidfiles = {loaded(None, {"tag": tag}).pidfile for tag in ("a b", "a/b", "a-b")}
        assert len(pidfiles) == 3

    def test_the_same_tag_in_two_directories_stays_apart(self, tmp_path: Path) -> None:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        pidfiles = {
            load(None, {"tag": "t"}, {}, tmp_path / name).pidfile for name in ("one", "two")
        }
        assert len(pidfiles) == 2

    @pytest.mark.parametrize(
        ("uid", "run_is_writable", "folder"),
        [(0, True, "/run/forkq"), (0, False, "/tmp/forkq-0"), (7, True, "/tmp/forkq-7")],
    )
    def test_else_run_for_root_and_the_temporary_folder(
        self, loaded: Loader, monkeypatch: pytest.MonkeyPatch, uid: int, run_is_writable: bool,
        folder: str,
    ) -> None:  # fmt: skip
        monkeypatch.setattr("forkq.config.paths.os.getuid", lambda: uid)
        monkeypatch.setattr("forkq.config.paths.os.access", lambda path, mode: run_is_writable)
        monkeypatch.delenv("TMPDIR", raising=False)
        config = loaded(None, XDG_RUNTIME_DIR="/no/such/folder", HOME="/home/me")
        assert config.pidfile.parent == Path(folder)
        assert config.state_dir.parent == Path("/home/me/.local/state/forkq")

    def test_relative_paths_start_at_the_working_directory(
        self, loaded: Loader, tmp_path: Path
    ) -> None:
        config = loaded('[forkq]\npidfile = "a.pid"\nstate_dir = "s"')
        assert (config.pidfile, config.state_dir) == (tmp_path / "a.pid", tmp_path / "s")

    def test_files_beside_the_pidfile(self, loaded: Loader) -> None:
        config = loaded(None, {"pidfile": "/run/a.pid"})
        assert config.url_file == Path("/run/a.redis")
        assert config.status_file == Path("/run/a.status.json")
        assert loaded(None, {"pidfile": "/run/a.b"}).url_file == Path("/run/a.b.redis")


class TestExample:
    """deploy/forkq.toml is documentation that cannot rot."""

    TEXT = EXAMPLE.read_text(encoding="utf-8")

    def test_is_valid_and_shows_the_defaults(self, loaded: Loader) -> None:
        defaults = loaded()
        config = loaded(self.TEXT)
        assert config.app == ("app.jobs",)
        assert [capsule.name for capsule in config.capsules] == ["default", "serial"]
        assert defaults == dataclasses.replace(
            config, app=(), capsules=defaults.capsules, cron=(), rules=defaults.rules, source=None
        )

    def test_its_periodic_job_shows_the_defaults_too(self, loaded: Loader) -> None:
        job = {"class": "app.jobs.cleanup", "args": [], "queue": "default"}
        assert loaded(self.TEXT).cron == (Entry.make(name="cleanup", cron="30 2 * * *", job=job),)

    def test_its_production_is_valid_too(self, loaded: Loader) -> None:
        config = loaded(self.TEXT, {"environment": "production"}, WORKERS="3")
        assert (config.log.level, config.log.format) == ("warning", "json")
        assert (config.capsules[0].workers, config.capsules[0].concurrency) == (3, 10)

    def test_what_is_commented_out_is_valid_too(self, loaded: Loader) -> None:
        text = re.sub(r"^# (pidfile|state_dir) = ", r"\1 = ", self.TEXT, flags=re.MULTILINE)
        config = loaded(text)
        assert config.pidfile == Path("/run/forkq/forkq.pid")
        assert config.state_dir == Path("/var/lib/forkq")

    @pytest.mark.parametrize(
        ("table", "key"),
        [
            *((name, key) for name in ("forkq", "redis", "log") for key in _keys(TABLES[name])),
            *(("capsules.default", key) for key in ("queues", "concurrency", "workers")),
            *(("[cron]", key) for key in _keys(ROWS.item)),
        ],
    )
    def test_has_every_key_with_a_comment_above(self, table: str, key: str) -> None:
        section = self.TEXT.split(f"\n[{table}]\n")[1].split("\n[")[0]
        assert re.search(rf"^# .+\n(# )?{key} = ", section, re.MULTILINE)


def _value(config: Config, key: str) -> object:
    """``redis.url`` of a config; ``queues`` and ``concurrency`` of its one capsule."""
    if key in ("queues", "concurrency"):
        (capsule,) = config.capsules
        return getattr(capsule, key)
    value: object = config
    for part in key.split("."):
        value = getattr(value, part)
    return value
