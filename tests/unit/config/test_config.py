"""The keys of the configuration: defaults, types, and messages that help."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from forkq.config.capsule import Capsule
from forkq.config.config import TABLES, Config, LogSettings, RedisSettings
from forkq.config.cron_tables import ROWS
from forkq.config.recycling import Recycling
from forkq.config.shards import ROWS as SHARDS
from forkq.config.shards import Shard
from forkq.config.web_table import WebTable
from forkq.cron.entry import Entry
from forkq.values import replace
from forkq.wire.password_source import PasswordSource
from tests.support.config_files import Failer, Loader


def _keys(table: object) -> list[str]:
    assert isinstance(table, Mapping)
    return list(table)


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
        assert replace(config, source=None) == without
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
        processes = "many"
        workers = 3
        strict_args = "warn"
        typed_args = true
        max_payload_size = 2048
        max_nesting = 40
        dead_max = 500
        dead_days = 2.5
        job_timeout = 30
        job_hard_timeout = 60.5
        cron_tz = "Europe/Berlin"
        solo_children = 4
        silent_after = 12.5
        state_dir = "/srv/state"
        replace_silent_after = 20
        kill_silent_after = 13.5
        max_memory = "512MB"
        hard_max_memory = "1.5 GiB"
        max_jobs = 1000
        max_age = 3600
        drain_timeout = 90
        [redis]
        url = "rediss://u@db:6380/4"
        password_file = "/run/secrets/redis"
        prefix = "shop:"
        cluster_shards = 1
        pool = 20
        connect_timeout = 0.5
        wait = 1
        wait_timeout = 0.2
        timeout = 1
        [[redis.shards]]
        name = "exports"
        url = "redis://db2"
        prefix = "exports:"
        queues = "exports"
        password_command = "vault read 'a secret'"
        [log]
        level = "error"
        format = "json"
        takeover = true
        max_job_lines = 0
        done_every = 100
        [web]
        listen = "[::1]:80"
        password_hash = "scrypt:1:2:3:c2FsdA==:aGFzaA=="
        user_header = "X-User"
        proxies = ["10.0.0.0/8"]
        authenticate = "app.web:who"
        authorize = "app.web:may"
        hosts = "jobs.example.org"
        read_only = true
        [capsules.default]
        queues = ["critical,5", ["low", 1]]
        concurrency = 10
        workers = 2
        job_timeout = 0
        [capsules.serial]
        queues = "exports"
        job_hard_timeout = 90
        max_memory = "0"
        max_jobs = 5
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
        limits = Recycling(
            max_memory=512 << 20, hard_max_memory=1536 << 20, max_jobs=1000, max_age=3600.0,
            drain_timeout=90.0,
        )  # fmt: skip
        own_limits = replace(limits, max_memory=0, max_jobs=5)
        assert loaded(self.TEXT) == Config(
            app=("app.jobs", "./more.py"),
            timeout=7.0,
            pidfile=tmp_path / "run" / "x.pid",
            environment="staging",
            tag="shop",
            labels=("blue", "eu"),
            preload=True,
            boot_timeout=60.0,
            processes="many",
            workers=3,
            strict_args="warn",
            typed_args=True,
            max_payload_size=2048,
            max_nesting=40,
            dead_max=500,
            dead_days=2.5,
            job_timeout=30.0,
            job_hard_timeout=60.5, cron_tz="Europe/Berlin",
            solo_children=4,
            silent_after=12.5,
            replace_silent_after=20.0,
            kill_silent_after=13.5,
            recycling=limits,
            cron=(
                Entry.make(
                    name="nightly", cron="*/30 0 2 * * *", tz="Europe/Berlin",
                    job={"class": "Report", "args": ["a", {"b": [1, 2.5, True]}], "queue": "low"},
                    overlap="skip", missed=5, jitter=2.5, enabled=False,
                ),
                Entry.make(
                    name="Tidy", cron="@hourly", tz="Europe/Berlin",
                    job={"class": "Tidy", "args": []},
                ),
            ),
            state_dir=Path("/srv/state"),
            redis=RedisSettings(
                url="rediss://u@db:6380/4", prefix="shop:", pool=20, connect_timeout=0.5,
                timeout=1.0, wait=1, wait_timeout=0.2,
                password_source=PasswordSource(Path("/run/secrets/redis")),
            ),
            log=LogSettings(
                level="error", format="json", takeover=True, max_job_lines=0, done_every=100,
            ),
            web=WebTable(
                listen="[::1]:80", password_hash="scrypt:1:2:3:c2FsdA==:aGFzaA==",
                user_header="X-User", authenticate="app.web:who", authorize="app.web:may",
                proxies=("10.0.0.0/8",), hosts=("jobs.example.org",), read_only=True,
            ),
            capsules=(
                Capsule(
                    "default", (("critical", 5), ("low", 1)), 10, 2, 0.0, 60.5, 4,
                    recycling=limits, shard="default",
                ),
                Capsule(
                    "serial@exports", (("exports", 0),), 5, 3, 30.0, 90.0, 4,
                    recycling=own_limits, shard="exports",
                ),
            ),
            shards=(
                Shard(
                    "default", "rediss://u@db:6380/4",
                    password_source=PasswordSource(Path("/run/secrets/redis")), prefix="shop:",
                ),
                Shard(
                    "exports", "redis://db2", ("exports",),
                    PasswordSource(command=("vault", "read", "a secret")), "exports:",
                ),
            ),
            shard="default",
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
            ("forkq.tag", r'"a\u0000"', "a text without NUL characters, found one"),
            ("forkq.app", r'["a", "b\u0000"]', "a text without NUL characters, found one"),
            ("forkq.pidfile", r'"a\u0000b"', "a text without NUL characters, found one"),
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
            ("forkq.job_timeout", "-1", "a number from 0 to 1000000000, found the whole number -1"),
            ("forkq.job_hard_timeout", '"1m"', "a number from 0 to 1000000000, found the string"),
            ("capsules.a.job_timeout", "true", "a number from 0 to 1000000000, found the truth"),
            ("forkq.silent_after", "0", "a number from 1 to 86400, found the whole number 0"),
            ("forkq.state_dir", "[]", "a path, found an empty list"),
            ("forkq.kill_silent_after", "-1", "a number from 0 to 86400, found the whole number"),
            ("forkq.max_memory", "512", 'a size such as "512MB" or "1.5GB", or "0" for no limit'),
            (
                "forkq.max_memory",
                '"512"',
                'a size such as "512MB" or "1.5GB", or "0" for no limit, found the string "512"',
            ),
            (
                "forkq.max_memory",
                '"-5MB"',
                'a size such as "512MB" or "1.5GB", or "0" for no limit, found the string "-5MB"',
            ),
            (
                "forkq.hard_max_memory",
                '"5 XB"',
                'a size such as "512MB" or "1.5GB", or "0" for no limit, found the string "5 XB"',
            ),
            ("forkq.max_jobs", "-1", "a whole number from 0 to 1000000000, found the whole"),
            ("forkq.max_age", '"1h"', 'a number from 0 to 31536000, found the string "1h"'),
            ("forkq.drain_timeout", "-1", "a number from 0 to 31536000, found the whole"),
            ("capsules.a.max_memory", "true", "a size such as"),
            ("redis.url", "6379", "a string, found the whole number 6379"),
            ("redis.url", '"http://db"', "redis://HOST:PORT/DB, rediss://"),
            ("redis.prefix", "1", "a string, found the whole number 1"),
            ("redis.pool", "0", "a whole number from 1 to 1000, found the whole number 0"),
            ("redis.connect_timeout", "0", "a number from 0.001 to 3600, found the whole number 0"),
            ("redis.timeout", '"5"', 'a number from 0.001 to 3600, found the string "5"'),
            ("log.level", '"INFO"', 'one of "debug", "info", "warning", "error", found the string'),
            ("log.format", '"xml"', 'one of "auto", "console", "json", "logfmt", found the string'),
            ("web.listen", '"9293"', "HOST:PORT"),
            ("web.password_hash", '"secret"', "what `forkq web hash-password` prints"),
            ("web.authorize", '"app"', '"module:function"'),
            ("web.user_header", '"A B"', "the name of a header"),
            ("web.proxies", '["proxy"]', 'addresses or networks, such as "10.0.0.5"'),
            ("log.max_job_lines", "-1", "a whole number from 0 to 1000000000, found"),
            ("log.done_every", "0", "a whole number from 1 to 1000000000, found"),
            ("log.takeover", '"no"', 'true or false, found the string "no"'),
            ("capsules.a.queues", "5", "a list of queues, each"),
            ("capsules.a.queues", '[["a", 1, 2]]', "a list of queues, each"),
            ("capsules.a.queues", '[["a", "1"]]', "a list of queues, each"),
            ("capsules.a.queues", "[]", "at least one queue, found none"),
            ("capsules.a.queues", '["a b"]', "NAME or NAME,WEIGHT"),
            ("capsules.a.queues", '[["a", 0]]', "NAME or NAME,WEIGHT"),
            ("capsules.a.concurrency", "0", "a whole number from 1 to 10000, found the whole"),
            ("capsules.a.concurrency", "10001", "a whole number from 1 to 10000, found the whole"),
            ("capsules.a.kind", '"asnyc"', 'one of "threads", "async", found the string "asnyc"'),
            ("capsules.a.threads", "0", "a whole number from 1 to 1000, found the whole"),
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
        names = {
            name for table in ("forkq", "redis", "log", "web") for name in _keys(TABLES[table])
        }
        names = (names - {"shards"}) | set(_keys(ROWS.item)) | set(_keys(SHARDS.item))
        assert all(re.search(rf"^\s*{name} = ", self.TEXT, re.MULTILINE) for name in names)


class TestUnknownKeys:
    def test_name_the_file_the_path_the_nearest_key_and_the_valid_ones(
        self, problems: Failer
    ) -> None:
        (line,) = problems("[redis]\npol = 5")
        assert line == (
            "FILE: redis.pol: unknown key, the nearest valid one is redis.pool "
            "(valid here: url, password_file, password_command, prefix, cluster_shards, pool, "
            "connect_timeout, timeout, wait, wait_timeout, shards)"
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
        valid = "level, format, takeover, max_job_lines, done_every"
        assert line == f"FILE: log.zzz: unknown key (valid here: {valid})"

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
