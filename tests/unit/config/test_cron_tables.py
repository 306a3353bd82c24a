"""``[[cron]]`` in forkq.toml."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from forkq.cli.config import config as config_command
from forkq.cron.entry import Entry
from forkq.errors import ConfigError
from tests.support.config_files import Failer, Loader


class TestCron:
    """``[[cron]]``: rows, counted from 0."""

    ROW = '[[cron]]\njob = "A"\ncron = "@daily"\n'

    def test_a_wrong_zone_of_all_is_told(self, problems: Failer) -> None:
        (line,) = problems('[forkq]\ncron_tz = "Berlin"\n')
        assert line.startswith("FILE: forkq.cron_tz: there is no time zone 'Berlin', the nearest")

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
            ("queue", '""', "'' is not a queue: expected a name of letters, digits and _ . : -"),
            ("queue", '"a b"', "'a b' is not a queue: expected a name of letters, digits and _ ."),
            ("queue", "5", "expected a name of letters, digits and _ . : -, found the whole numb"),
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
