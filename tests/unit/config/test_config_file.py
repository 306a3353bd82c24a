"""forkq.toml: how it is found and read, its environments and its variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkq.config.capsule import Capsule
from forkq.config.config import RedisSettings
from forkq.config.load import load
from forkq.errors import ConfigError
from tests.support.config_files import Failer, Loader


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
        assert loaded(text, FORKQ_ENVIRONMENT="ci").environment == "ci"
        assert loaded(text, {"environment": "development"}).environment == "development"

    @pytest.mark.parametrize("text", [None, "", "[environments.production.log]"])
    def test_one_that_the_flag_names_must_exist(self, problems: Failer, text: str | None) -> None:
        (line,) = problems(text, {"environment": "ci"})
        assert line.startswith("-e ci: ")
        assert "has no [environments.ci]; there is development" in line

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
