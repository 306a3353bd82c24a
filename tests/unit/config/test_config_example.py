"""deploy/forkq.toml is documentation that cannot rot."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from forkq.config.config import TABLES
from forkq.config.cron_tables import ROWS
from forkq.config.shards import ROWS as SHARDS
from forkq.cron.entry import Entry
from forkq.values import replace
from tests.support.config_files import Loader
from tests.support.documents import ROOT

_TABLES = ("forkq", "redis", "log", "web")
EXAMPLE = ROOT / "deploy" / "forkq.toml"


def _keys(table: object) -> list[str]:
    assert isinstance(table, Mapping)
    return list(table)


class TestExample:
    """deploy/forkq.toml is documentation that cannot rot."""

    TEXT = EXAMPLE.read_text(encoding="utf-8")

    def test_is_valid_and_shows_the_defaults(self, loaded: Loader) -> None:
        defaults = loaded()
        config = loaded(self.TEXT)
        assert config.app == ("app.jobs",)
        assert [capsule.name for capsule in config.capsules] == ["default", "serial"]
        assert defaults == replace(
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
        keys = r"^# (pidfile = |state_dir = |\[\[redis|name = |url = |queues = )"
        config = loaded(re.sub(keys, r"\1", self.TEXT, flags=re.MULTILINE))
        assert [shard.name for shard in config.shards] == ["default", "mail"]
        assert config.pidfile == Path("/run/forkq/forkq.pid")
        assert config.state_dir == Path("/var/lib/forkq")

    def test_has_every_key_with_a_comment_above(self) -> None:
        keys = [
            *(
                (name, key)
                for name in ("forkq", "redis", "log", "web")
                for key in _keys(TABLES[name])
                if key != "shards"
            ),
            *(("capsules.default", key) for key in ("queues", "concurrency", "workers")),
            *(("[cron]", key) for key in _keys(ROWS.item)),
            *(("[redis.shards]", key) for key in _keys(SHARDS.item)),
        ]
        text = self.TEXT.replace("# [[redis.shards]]", "[[redis.shards]]")
        for table, key in keys:
            section = text.split(f"\n[{table}]\n")[1].split("\n[")[0]
            assert re.search(rf"^# .+\n(# )?{key} = ", section, re.MULTILINE), (table, key)
