"""Which periodic jobs the children of each shard publish."""

from __future__ import annotations

from pathlib import Path

from forkq.child.cron.publish import of_shard
from forkq.config.load import load
from forkq.cron.entry import Entry
from tests.support.recorded_log import RecordedLog

TEXT = """
    [redis]
    url = "redis://a"
    [[redis.shards]]
    name = "mail"
    url = "redis://b"
    queues = ["mail"]
    [[redis.shards]]
    name = "bulk"
    url = "redis://c"
    queues = ["bulk"]
    [capsules.default]
    queues = ["default", "mail"]
"""


def entry(name: str, **job: object) -> Entry:
    return Entry.make(name=name, cron="@daily", job={"class": "J", "args": [], **job})


ENTRIES: dict[str, list[Entry]] = {
    "code:app": [entry("plain"), entry("letters", queue="mail"), entry("big", queue="bulk")],
    "file:app": [],
}


def names(shard: str, folder: Path, log: RecordedLog) -> dict[str, list[str]]:
    (folder / "forkq.toml").write_text(TEXT)
    found = of_shard(ENTRIES, load(None, {}, {}, folder).of_shard(shard), log)
    return {origin: [one.name for one in listed] for origin, listed in found.items()}


def test_without_shards_a_child_publishes_all(tmp_path: Path) -> None:
    assert of_shard(ENTRIES, load(None, {}, {}, tmp_path), RecordedLog()) is ENTRIES


def test_a_child_publishes_those_whose_queue_its_shard_has(tmp_path: Path) -> None:
    """Those that no child can publish are named once, by the children of one shard. An origin
    without entries stays: it removes those that have moved."""
    of_default, of_mail = RecordedLog(), RecordedLog()
    assert names("default", tmp_path, of_default) == {"code:app": ["plain"], "file:app": []}
    assert names("mail", tmp_path, of_mail) == {"code:app": ["letters"], "file:app": []}
    [line] = of_default.events()
    assert line.startswith("periodic jobs not published: no capsule of this tree")
    assert of_mail.events() == []
