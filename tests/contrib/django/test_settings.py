"""The setting FORKQ is the configuration; what is wrong in it is told with its place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test.utils import override_settings
from django.utils.translation import gettext_lazy

from forkq.config import provided
from forkq.config.config import Config
from forkq.config.load import load
from forkq.contrib.django import command
from forkq.errors import CannotBoot, ConfigError
from forkq.screens.periodic import PERIODIC
from forkq.wire.redis_url import slot_of

pytestmark = pytest.mark.usefixtures("project")


def loaded(folder: Path, settings: Any, flags: dict[str, Any] | None = None) -> Config:
    with override_settings(FORKQ=settings):
        return load(None, flags or {}, {}, folder)


def test_it_has_the_tables_and_keys_of_forkq_toml(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        {
            "forkq": {"timeout": 7, "state_dir": tmp_path / "state", "labels": ("a", "b")},
            "redis": {"url": "redis://example.com:1/2", "prefix": gettext_lazy("p:")},
            "capsules": {"default": {"queues": ["mail", ("low", 2)]}},
            "limits": {"mail": 3},
        },
    )
    assert (config.timeout, config.labels, config.redis.prefix) == (7, ("a", "b"), "p:")
    assert config.state_dir == tmp_path / "state"
    assert config.redis.url == "redis://example.com:1/2"
    assert config.capsules[0].queue_names == ("mail", "low")
    assert str(config.origin("forkq.timeout")) == "settings.FORKQ: forkq.timeout"


def test_the_project_is_loaded_before_other_apps(tmp_path: Path) -> None:
    own = "forkq.contrib.django.app"
    assert loaded(tmp_path, {}).app == (own,)
    assert loaded(tmp_path, {"forkq": {"app": ["more.jobs", own]}}).app == (own, "more.jobs")
    assert loaded(tmp_path, {}, {"require": ("more.jobs",)}).app == (own, "more.jobs")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"forkq": {"timout": 7}}, r"settings\.FORKQ: forkq\.timout: .* nearest .* forkq\.timeout"),
        ({"redis": {"url": None}}, r"settings\.FORKQ\['redis'\]\['url'\]: .* NoneType"),
        ({"forkq": {"labels": {"a"}}}, r"settings\.FORKQ\['forkq'\]\['labels'\]: .* a set"),
        ({"forkq": {1: 2}}, r"settings\.FORKQ\['forkq'\]: the key 1 is an int"),
        ({"forkq": {"timeout": "x"}}, r"settings\.FORKQ: forkq\.timeout: expected a number"),
        ([("forkq", {})], r"settings\.FORKQ: expected a dict, found a list"),
    ],
)
def test_a_mistake_is_refused_with_its_place(tmp_path: Path, settings: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        loaded(tmp_path, settings)


def test_forkq_toml_counts_where_there_is_no_setting(tmp_path: Path) -> None:
    (tmp_path / "forkq.toml").write_text("[forkq]\ntimeout = 9\n")
    assert loaded(tmp_path, {}).timeout == 9
    with pytest.raises(ConfigError, match=r"both settings\.FORKQ and .*forkq\.toml .* remove one"):
        loaded(tmp_path, {"forkq": {"timeout": 7}})


def test_a_forkq_toml_above_may_be_that_of_another_service(tmp_path: Path) -> None:
    """It is not read, so it may be wrong; and paths do not start at its folder."""
    (tmp_path / "forkq.toml").write_text("of [another")
    folder = tmp_path / "service"
    folder.mkdir()
    config = loaded(folder, {"forkq": {"timeout": 7}})
    assert (config.timeout, config.folder) == (7, folder)
    with pytest.raises(ConfigError, match=r"forkq\.toml"):
        loaded(folder, {})


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("FORKQ", {"redsi": {}}, r"forkq\.E001.* settings\.FORKQ: redsi: unknown key"),
        ("FORKQ_ONCOMMIT", True, r"forkq\.E002.* there is FORKQ and FORKQ_ON_COMMIT"),
        ("FORKQ_ON_COMMIT", "no", r"forkq\.E003.* expected True or False, found a str"),
    ],
)
def test_manage_check_finds_it(name: str, value: Any, problem: str) -> None:
    with (
        override_settings(**{name: value}),
        pytest.raises(SystemCheckError, match=rf"(?s){problem}"),
    ):
        call_command("check")


def test_options_of_manage_py_are_not_forkqs() -> None:
    given = ["status", "--settings", "a.b", "--json", "--pythonpath=/x", "--settings=c", "-g", "t"]
    assert command.without_django_options(given) == ["status", "--json", "-g", "t"]


def test_call_command_runs_a_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    call_command("forkq", "version")
    assert capsys.readouterr().out.startswith("forkq ")
    with pytest.raises(Exception, match="forkq ended with 4") as failed:
        call_command("forkq", "status", "--pidfile", str(tmp_path / "none.pid"))
    assert getattr(failed.value, "returncode", None) == 4


def test_start_becomes_a_program_without_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[Any] = []

    def execve(*arguments: Any) -> None:
        executed.append(arguments)
        raise SystemExit

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr("sys.orig_argv", ["python", "-W", "error", "manage.py", "forkq", "start"])
    monkeypatch.setattr("sys.argv", ["manage.py", "forkq", "start"])
    with pytest.raises(SystemExit):
        command.run(["start", "--reload", "--settings", "x"])
    (_, arguments, environ) = executed[0]
    assert arguments[1:] == ["-W", "error", "-m", "forkq.contrib.django", "start", "--reload"]
    assert environ["_FORKQ_PATH"]


def test_plain_forkq_start_refuses_a_project_whose_settings_it_has_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its children would fetch from one server, and push to another."""
    from forkq.contrib.django import app  # noqa: PLC0415 - it needs a project

    app.load()
    monkeypatch.setattr(provided, "source", None)
    app.load()
    with (
        override_settings(FORKQ={"redis": {"url": "redis://example.com"}}),
        pytest.raises(CannotBoot, match=r"only `manage\.py forkq start` reads it"),
    ):
        app.load()


def test_a_project_without_the_app_is_refused() -> None:
    from forkq.contrib.django import app  # noqa: PLC0415 - it needs a project

    with (
        override_settings(INSTALLED_APPS=["django.contrib.sites"]),
        pytest.raises(CannotBoot, match=r'add "forkq\.contrib\.django" to INSTALLED_APPS'),
    ):
        app.load()


def test_where_a_thing_is_missing_the_text_names_the_settings(tmp_path: Path) -> None:
    how = "Add @forkq.every to a job, or a [[cron]] table to settings.FORKQ."
    assert PERIODIC.table("web", []).empty.how == how
    with pytest.raises(ConfigError, match=r"there is no settings\.FORKQ, so it has no \[env"):
        loaded(tmp_path, {}, {"environment": "staging"})
    with pytest.raises(ConfigError, match=r"under \[redis\] in settings\.FORKQ"):
        slot_of("plain:")
