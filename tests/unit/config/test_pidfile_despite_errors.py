"""Where the pidfile is, although the configuration is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkq.config.load import config_despite_errors, load
from forkq.errors import ConfigError

BROKEN = [
    pytest.param("[forkq]\n{0}\nthread = 3\n", id="an unknown key"),
    pytest.param("[forkq\n{0}\n", id="a header without its end"),
    pytest.param('[forkq]\ntimeout = = 3\n{0}\n[redis]\nurl = "', id="no TOML"),
    pytest.param('[[cron]]\njob = "tag = 1"\n[capsules.a]\nx = \n[forkq]\n{0}', id="later"),
    pytest.param('[forkq]\n{0}\n[redis]\nurl = "${{NOT_SET}}"\n', id="a variable that is not set"),
    pytest.param("[forkq]\n{0}\n\xff\xfe", id="not UTF-8"),
]


def found(cwd: Path, **environ: str) -> Path:
    with pytest.raises(ConfigError):
        load(None, {}, environ, cwd)
    return config_despite_errors({}, environ, cwd).pidfile


@pytest.mark.parametrize("text", BROKEN)
@pytest.mark.parametrize("line", ['pidfile = "a/b.pid"', 'tag = "shop"', "workers = 2"])
def test_it_is_where_the_right_file_puts_it(tmp_path: Path, text: str, line: str) -> None:
    file = tmp_path / "forkq.toml"
    file.write_text(f"[forkq]\n{line}\n")
    right = load(None, {}, {}, tmp_path).pidfile
    file.write_text(text.format(line), encoding="latin-1")
    assert found(tmp_path) == right


def test_the_environments_table_counts(tmp_path: Path) -> None:
    (tmp_path / "forkq.toml").write_text(
        '[forkq]\npidfile = "one"\n[environments.test.forkq]\npidfile = "two"\n[oops'
    )
    assert found(tmp_path) == tmp_path / "one"
    assert found(tmp_path, FORKQ_ENVIRONMENT="test") == tmp_path / "two"


def test_a_flag_or_a_variable_needs_no_file(tmp_path: Path) -> None:
    given = config_despite_errors({"config": "no.toml", "pidfile": "three"}, {}, tmp_path)
    assert given.pidfile == tmp_path / "three"
    assert found(tmp_path, FORKQ_PIDFILE="four", FORKQ_CONFIG="no.toml") == tmp_path / "four"
    with pytest.raises(ConfigError, match="no such file"):
        config_despite_errors({"config": "no.toml"}, {}, tmp_path)
