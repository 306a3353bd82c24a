"""``[spread]``: which shards have a part of a queue, what is refused, and what is forked."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner

from forkq.cli.config import config as config_command
from forkq.config.config import Config
from forkq.config.effective import effective
from forkq.config.shards import parts_of, shard_of
from forkq.wire.spread import part_of
from tests.support.config_files import Failer, Loader

CLUSTER = """
    [redis]
    url = "redis://a"
    prefix = "{f}:"
    cluster_shards = 4
"""
ROWS = """
    [redis]
    url = "redis://a"
    [[redis.shards]]
    name = "mail"
    url = "redis://b"
    queues = ["mail", "imp*"]
    [[redis.shards]]
    name = "bulk"
    url = "redis://c"
    queues = ["bulk"]
"""


def parts(config: Config, queue: str = "imports") -> list[str]:
    return [shard.name for shard in parts_of(config.shards, queue)]


@pytest.mark.parametrize(
    ("text", "wanted", "names"),
    [
        (CLUSTER, "2", ["default", "s1"]),
        (CLUSTER, "4", ["default", "s1", "s2", "s3"]),
        (CLUSTER, "['s3', 'default']", ["default", "s3"]),
        (ROWS, "2", ["default", "mail"]),
        (ROWS, "['bulk', 'mail']", ["bulk", "mail"]),
        (ROWS, "3", ["bulk", "default", "mail"]),
        (ROWS, "1", ["mail"]),  # it is not spread
    ],
)
def test_a_number_or_names_say_where_the_parts_are(
    loaded: Loader, text: str, wanted: str, names: list[str]
) -> None:
    config = loaded(f"{text}\n[spread]\nimports = {wanted}")
    assert parts(config) == names
    assert parts(config, "other") == ["default"]
    assert config.spread_queues == (["imports"] if len(names) > 1 else [])


def test_a_row_that_gives_a_queue_to_a_shard_of_the_cluster_changes_no_part(loaded: Loader) -> None:
    row = '[[redis.shards]]\nname = "s3"\nqueues = ["mail"]'
    assert parts(loaded(f"{CLUSTER}\n{row}\n[spread]\nimports = 3")) == ["default", "s1", "s2"]


def test_the_key_chooses_the_part_whatever_the_order_of_the_file(loaded: Loader) -> None:
    one = loaded(f"{ROWS}\n[spread]\nimports = ['default', 'mail', 'bulk']").shards
    other = loaded(f"{ROWS}\n[spread]\nimports = ['bulk', 'mail', 'default']").shards
    for key in map(str, range(100)):
        chosen = part_of(["bulk", "default", "mail"], key)
        assert shard_of(one, "imports", key).name == shard_of(other, "imports", key).name == chosen


@pytest.mark.parametrize(
    ("queues", "names"),
    [
        (["imports"], ["a", "a@s1", "a@s2"]),
        (["default"], ["a"]),
        (["imp*"], ["a", "a@s1", "a@s2"]),
        (["x*"], ["a"]),
    ],
)
def test_a_capsule_is_forked_for_each_part(
    loaded: Loader, queues: list[str], names: list[str]
) -> None:
    config = loaded(f"{CLUSTER}\n[spread]\nimports = 3\n[capsules.a]\nqueues = {queues}")
    assert sorted(capsule.name for capsule in config.capsules) == names


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{CLUSTER}[spread]\nimports = 5", "spread.imports: \"imports\" cannot be on 5 shards"),
        (f"{CLUSTER}[spread]\nimports = 5", "there are 4 shards (default, s1, s2, s3)"),
        (f"{CLUSTER}[spread]\nimports = 5", "set [redis] cluster_shards = 5, or add"),
        ("[spread]\nimports = 2", "there are no shards: set [redis] cluster_shards = 2"),
        (f"{CLUSTER}[spread]\nimports = 0", "expected 1 (one shard) or more, found 0"),
        (f"{CLUSTER}[spread]\nimports = true", "expected the number of its shards, or a list"),
        (f"{CLUSTER}[spread]\nimports = ['s1']", "expected two shards or more"),
        (f"{CLUSTER}[spread]\nimports = ['s1', 's1']", "expected two shards or more"),
        (f"{CLUSTER}[spread]\nimports = ['s1', 's9']", 'there is no shard "s9"'),
        (f"{CLUSTER}[spread]\n'imp*' = 2", '"imp*" is a pattern: name each queue'),
        (f"{ROWS}[spread]\nmail = 2", '"mail" is in the `queues` of the shard mail too'),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(problems: Failer, text: str, problem: str) -> None:
    assert any(problem in line for line in problems(text)), problems(text)


@pytest.mark.parametrize(
    ("rules", "place"),
    [
        ("[limits]\nimports = 3", "limits.imports"),
        ("[limits]\n'imp*' = 3", 'limits."imp*"'),
        ("[limits]\nother = 1\n'*' = 3", 'limits."*"'),
        ("[rates]\nimports = '5/second'", "rates.imports"),
        ("[rates]\nimports = { rate = '5/second', burst = 2 }", "rates.imports.rate"),
        ("[blocking]\nimports = true", "blocking.imports"),
        ("[blocking]\ndefault = ['imports']", "blocking.default"),
    ],
)
def test_a_rule_that_no_server_could_keep_is_refused(
    problems: Failer, rules: str, place: str
) -> None:
    capsule = "[capsules.a]\nqueues = ['default', 'imports']"
    (line,) = problems(f"{CLUSTER}\n{capsule}\n[spread]\nimports = 2\n{rules}")
    assert f'{place}: "imports" is spread over several shards' in line
    assert "take it out of [spread], or lift the rule" in line


@pytest.mark.parametrize(
    "rules",
    [
        "[process_limits]\nimports = 3",
        "[limits]\nother = 3",
        "[blocking]\nimports = false",
        "[limits]\nimports = 3\n[environments.test.redis]\ncluster_shards = 1",
    ],
)
def test_a_rule_that_holds_in_each_part_is_not(loaded: Loader, rules: str) -> None:
    one = "environments.test" in rules
    spread = "[environments.test.spread]\nimports = 1" if one else "[spread]\nimports = 2"
    flags = {"environment": "test"} if one else {}
    assert loaded(f"{CLUSTER}\n{rules}\n{spread}", flags).rules.entries


def test_the_one_server_of_a_flag_has_no_parts(loaded: Loader) -> None:
    config = loaded(f"{CLUSTER}\n[spread]\nimports = 4", {"redis": "redis://b"})
    assert (config.shards, config.spread_queues) == ((), [])


def test_config_show_has_the_table(loaded: Loader) -> None:
    config = loaded(f"{CLUSTER}\n[spread]\nimports = 4\nmail = ['s1', 's2']")
    found = {one.key: one.value for one in effective(config)}
    assert found["spread.imports"] == ["default", "s1", "s2", "s3"]
    assert found["spread.mail"] == ["s1", "s2"]


def test_config_check_says_what_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "forkq.toml").write_text(dedent(f"{CLUSTER}\n[spread]\nimports = 2"))
    monkeypatch.chdir(tmp_path)
    printed = CliRunner().invoke(config_command, ["check", "--no-import"], standalone_mode=False)
    assert "imports: default s1 (order holds within each of them only)" in printed.output
