"""``forkq config show``: every value in force and its origin, without secrets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from forkq.cli.config import config as config_command
from forkq.config.config import KEYS
from forkq.errors import ConfigError
from tests.support.printed import objects

TEXT = """
[forkq]
tag = "shop"
timeout = 7
[redis]
url = "${ADDRESS}"
[[redis.shards]]
name = "letters"
url = "redis://:hunter3@db2"
queues = ["letters"]
[capsules.default]
queues = ["mail,3", "low"]
[environments.production.forkq]
timeout = 60
[limits]
"tenant-*" = 2
[rates]
mail = "5/second"
low = { rate = "1/minute", burst = 3 }
[blocking]
mail = ["low"]
[fair]
"tenant-*" = true
[[cron]]
job = "Report"
cron = "@daily"
args = ["top-secret"]
"""


@pytest.fixture
def show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the command on the file above. Returns what it prints."""
    (tmp_path / "forkq.toml").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADDRESS", "redis://ann:hunter2@db")
    monkeypatch.setenv("FORKQ_BOOT_TIMEOUT", "9")

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(
            config_command, ["show", *arguments], catch_exceptions=False, standalone_mode=False
        )
        return result.output

    return run


def origins(text: str) -> dict[str, tuple[object, str, str | None]]:
    return {row["key"]: (row["value"], row["from"], row["name"]) for row in objects(text)}


def test_each_value_has_its_origin(show: Any) -> None:
    """A flag, a variable, the file, a table of its environment, or a default."""
    shown = origins(show("--json", "-w", "4", "-q", "a,2", "-q", "b", "-e", "production"))
    assert shown["forkq.workers"] == (4, "flag", "--workers")
    assert shown["capsules.default.queues"] == (["a,2", "b,1"], "flag", "-q")
    assert shown["capsules.default.workers"] == (4, "flag", "--workers")
    assert shown["forkq.boot_timeout"] == (9, "variable", "FORKQ_BOOT_TIMEOUT")
    assert shown["forkq.tag"] == ("shop", "file", "forkq.tag")
    assert shown["forkq.timeout"] == (60, "file", "environments.production.forkq.timeout")
    assert shown["redis.pool"] == (10, "default", None)
    assert shown["capsules.default.concurrency"] == (5, "default", None)
    assert shown["cron[0].cron"] == ("@daily", "file", "cron[0].cron")
    assert shown["cron[0].tz"] == ("UTC", "default", None)
    assert shown['limits."tenant-*"'] == (2, "file", 'limits."tenant-*"')
    assert shown["rates.mail.rate"] == ("5/second", "file", "rates.mail")
    assert shown["rates.low.burst"] == (3, "file", "rates.low.burst")
    assert shown["blocking.mail"] == (["low"], "file", "blocking.mail")


def test_every_key_is_shown(show: Any) -> None:
    shown = {
        re.sub(r"^capsules\.default", "capsules.NAME", re.sub(r"\[\d\]", "[N]", key))
        for key in origins(show("--json"))
    }
    rules = ("limits", "process_limits", "rates", "blocking", "fair", "spread", "expire")
    expected = {key for key in KEYS if not key.startswith(rules)}
    assert {key for key in shown if not key.startswith(rules)} == expected


def test_the_table_names_the_file_and_the_key_in_an_environment(show: Any, tmp_path: Path) -> None:
    lines = show("-e", "production").splitlines()
    rows = {key: (value, origin) for key, value, origin in (re.split(r"  +", x) for x in lines)}
    file = tmp_path / "forkq.toml"
    assert rows["KEY"] == ("VALUE", "FROM")
    assert rows["forkq.tag"] == ("shop", str(file))
    assert rows["forkq.timeout"] == ("60", f"{file}: environments.production.forkq.timeout")
    assert rows["forkq.boot_timeout"] == ("9", "FORKQ_BOOT_TIMEOUT")
    assert rows["forkq.environment"] == ("production", "--environment")
    assert rows["redis.prefix"] == ('""', "default")
    assert rows["cron[0].queue"] == ("-", "default")


def test_no_secret_is_shown(show: Any) -> None:
    for arguments in ((), ("--json",), ("--redis", "redis://:hunter2@db")):
        shown = show(*arguments)
        assert "hunter" not in shown
        assert "top-secret" not in shown
        assert ":***@db" in shown


def test_a_wrong_file_is_an_error(show: Any, tmp_path: Path) -> None:
    (tmp_path / "forkq.toml").write_text("[forkq]\ntimout = 1")
    with pytest.raises(ConfigError, match=r"forkq\.timout: unknown key"):
        show()
