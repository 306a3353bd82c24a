"""``[[redis.shards]]``: which server has which queue, and which capsules are forked for it."""

from __future__ import annotations

from typing import Any

import pytest

from forkq.config.config import Config
from forkq.config.shards import shard_of
from forkq.errors import ConfigError
from forkq.values import replace
from tests.support.config_files import Failer, Loader

TEXT = """
    [redis]
    url = "redis://a"
    [[redis.shards]]
    name = "mail"
    url = "redis://:hunter2@b:6380"
    queues = ["mail", "mail.*"]
    [[redis.shards]]
    name = "bulk"
    url = "unix:///run/bulk.sock"
    queues = "bulk-*"
"""


def shown(config: Config) -> list[tuple[str, str]]:
    return [(capsule.name, capsule.shard) for capsule in config.capsules]


def test_without_them_nothing_changes(loaded: Loader) -> None:
    config = loaded('[redis]\nurl = "redis://a"')
    assert (config.shards, config.shard, shown(config)) == ((), "", [("default", "")])
    assert config.of_shard("") is config


@pytest.mark.parametrize(
    ("queue", "shard"),
    [("mail", "mail"), ("mail.eu", "mail"), ("bulk-1", "bulk"), ("bulk", "default")],
)  # fmt: skip
def test_the_name_of_a_queue_decides(loaded: Loader, queue: str, shard: str) -> None:
    assert shard_of(loaded(TEXT).shards, queue, "").name == shard


@pytest.mark.parametrize(
    ("queues", "names"),
    [
        (["default"], ["a"]),
        (["mail", "mail.eu"], ["a@mail"]),
        (["default", "mail", "bulk-1"], ["a", "a@mail", "a@bulk"]),
        (["bulk-*"], ["a@bulk"]),  # as the shard writes it: nowhere else
        (["bulk*"], ["a", "a@bulk"]),  # a shard that lists none of its queues has none
        (["*"], ["a", "a@mail", "a@bulk"]),
        (["mail,2", "default,1"], ["a", "a@mail"]),
    ],
)
def test_a_capsule_is_forked_for_each_shard_of_its_queues(
    loaded: Loader, queues: list[str], names: list[str]
) -> None:
    config = loaded(f"{TEXT}\n[capsules.a]\nqueues = {queues}")
    assert [capsule.name for capsule in config.capsules] == names
    assert {capsule.listed_queues for capsule in config.capsules} == {tuple(queues)}
    assert [capsule.name for capsule in config.own_capsules] == ["a"]


@pytest.mark.parametrize(
    ("earlier", "shards"),
    [
        ("web.eu", ["x", "y"]),
        ("web.e*", ["x", "y"]),
        ("*.eu", ["x", "y"]),
        ("we[ab].1", ["x", "y"]),
        ("other", ["y"]),
        ("other.*", ["y"]),
    ],
)
def test_an_earlier_shard_may_have_queues_of_a_pattern(
    loaded: Loader, earlier: str, shards: list[str]
) -> None:
    """They are pushed there, although a later shard lists the pattern of the capsule."""
    rows = row(queues=[earlier]) + row(name="y", url="redis://y", queues=["web.*"])[len(TEXT) :]
    config = loaded(f'{rows}\n[capsules.a]\nqueues = ["web.*"]')
    assert [capsule.shard for capsule in config.capsules] == shards


def test_the_queues_of_a_capsule_on_several_shards_are_named_once(loaded: Loader) -> None:
    config = loaded(f'{TEXT}\n[capsules.a]\nqueues = ["default", "mail"]')
    assert len(config.capsules) == 2
    assert config.queue_names == ["default", "mail"]


def test_queues_in_the_wrong_table_belong_to_a_capsule(problems: Failer) -> None:
    (line,) = problems('[forkq]\nqueues = ["default"]')
    assert "it belongs to capsules.NAME.queues (" in line


def test_a_configuration_of_one_shard_has_its_address(loaded: Loader) -> None:
    config = loaded(TEXT)
    of_mail = config.of_shard("mail")
    assert (of_mail.redis.url, of_mail.shard) == ("redis://:hunter2@b:6380", "mail")
    assert of_mail.of_shard("default") == config
    assert replace(of_mail, redis=config.redis, shard="default") == config
    with pytest.raises(ConfigError, match="there are default, mail, bulk"):
        config.of_shard("x")


def test_no_password_is_shown(loaded: Loader) -> None:
    assert "hunter2" not in repr(loaded(TEXT))


def test_a_flag_or_a_call_means_that_one_server(loaded: Loader) -> None:
    config = loaded(TEXT, {"redis": "redis://c"})
    assert (config.redis.url, config.shards) == ("redis://c", ())


def test_a_variable_is_the_address_of_the_default_shard(loaded: Loader) -> None:
    config = loaded(TEXT, FORKQ_REDIS="redis://c")
    assert config.shards[0].url == config.redis.url == "redis://c"


def test_an_environment_may_have_none(loaded: Loader) -> None:
    text = f"{TEXT}\n[environments.test.redis]\nshards = []"
    assert loaded(text, {"environment": "test"}).shards == ()


def row(**values: Any) -> str:
    given = {"name": "x", "url": "redis://x", "queues": ["x"], **values}
    lines = (f"{key} = {value!r}" for key, value in given.items() if value is not None)
    return "\n".join([TEXT, "[[redis.shards]]", *lines])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (row(name="default"), '[2].name: "default" is the shard of [redis] url'),
        (row(name="a@b"), '[2].name: "a@b" is no name for a shard'),
        (row(name="mail"), "[2]: 'mail' is the name of redis.shards[0] too"),
        (row(name=None), "[2].name: missing, expected a name"),
        (row(url=None), '[2].name: the shard "x" has no place: give it a `url`, or a `prefix`'),
        (row(name="s1", url=None), 'makes no shard but the default one, and not "s1"'),
        (row(name="s1", url=None), "or set [redis] cluster_shards = 2"),
        (row(url=None, prefix=""), '[2].prefix: the prefix "" at redis://a is that of the shard'),
        (row(url=None, prefix="x:", password_file="p"), "[2].password_file: it is for the server"),
        (row(queues=None), "[2].queues: missing, expected a list of queues and patterns"),
        (row(url="embedded"), "[2].url: a shard is a server of yours; the embedded one has none"),
        (row(url="http://x"), "[2].url: expected redis://HOST:PORT/DB"),
        (row(url="redis://me:hunter2@A:6379/0"), "@A:6379/0 is the server of the shard default"),
        (row(url="unix:///run/bulk.sock?db=0"), "is the server of the shard bulk too"),
        (row(queues=[]), "[2].queues: expected at least one queue or pattern, found none"),
        (row(queues=["a b"]), '[2].queues: "a b" is not a queue'),
        (row(queues=["mail.eu"]), '[2].queues: "mail.eu" is in the shard mail already'),
        (row(queue=["x"]), "nearest valid one is redis.shards[2].queues ("),
        (row().replace('"redis://a"', '"embedded"'), "[0].url: [redis] url is embedded"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(problems: Failer, text: str, problem: str) -> None:
    (line, *_) = problems(text)
    assert problem in line
    assert line.startswith("FILE: redis.shards[")
    assert "hunter2" not in line


def test_one_table_instead_of_a_list_is_named_with_its_whole_path(problems: Failer) -> None:
    (line,) = problems('[redis.shards]\nname = "mail"')
    assert (
        line
        == "FILE: redis.shards: expected a list of tables, each [[redis.shards]], found a table"
    )


def test_a_queue_makes_no_queue_of_another_shard_wait(loaded: Loader, problems: Failer) -> None:
    queues = '\n[capsules.default]\nqueues = ["default", "mail", "mail.eu", "low"]\n[blocking]\n'
    (line,) = problems(f'{TEXT}{queues}mail = ["low"]')
    assert line == (
        'FILE: blocking.mail: "mail" is on the shard mail and "low" on default, and a queue can '
        "make queues of its own shard wait only"
    )
    assert loaded(f'{TEXT}{queues}mail = ["mail.eu"]\ndefault = true').shards


def test_another_database_is_another_server(loaded: Loader) -> None:
    assert len(loaded(row(url="redis://a/1")).shards) == 4
    assert len(loaded(row(url="unix:///run/bulk.sock?db=1")).shards) == 4


def test_sentinels_lead_to_a_server_for_each_name(loaded: Loader, problems: Failer) -> None:
    sentinels = TEXT.replace("redis://a", "sentinel://s:26379,[::1]/jobs")
    other = row(url="sentinel://s:26379,[::1]/mails").replace(TEXT, sentinels)
    assert len(loaded(other).shards) == 4
    (line,) = problems(other.replace("/mails", "/jobs/0"))
    assert "is the server of the shard default too" in line


CLUSTER = """
    [redis]
    url = "cluster://a,b"
    prefix = "{forkq}:"
    cluster_shards = 8
    [[redis.shards]]
    name = "s3"
    queues = ["mail"]
"""


def test_a_cluster_has_as_many_shards_as_it_is_told(loaded: Loader) -> None:
    """Only a table gives a queue to one of them: nothing moves by itself, and a capsule is not
    forked for a shard without queues."""
    config = loaded(f'{CLUSTER}\n[capsules.a]\nqueues = ["*"]')
    names = [shard.name for shard in config.shards]
    assert names == ["default", "s3", "s1", "s2", "s4", "s5", "s6", "s7"]
    assert {shard.url for shard in config.shards} == {"cluster://a,b"}
    assert {queue: shard_of(config.shards, queue, "").name for queue in ("mail", "x")} == {
        "mail": "s3",
        "x": "default",
    }
    assert shown(config) == [("a", "default"), ("a@s3", "s3")]
    assert config.of_shard("s3").redis.prefix == "{qkp}forkq:"
    assert config.of_shard("s3").of_shard("default").redis.prefix == "{forkq}:"


def test_without_rows_all_queues_are_on_the_default_shard(loaded: Loader) -> None:
    config = loaded(CLUSTER.partition("[[")[0])
    assert len(config.shards) == 8
    assert shown(config) == [("default", "default")]


def test_a_shard_may_be_a_prefix_on_the_server_of_the_default_one(loaded: Loader) -> None:
    mail = '[[redis.shards]]\nname = "mail"\nprefix = "{mail}:"\nqueues = "mail"'
    shard = loaded(f'[redis]\nurl = "cluster://a"\nprefix = "{{x}}:"\n{mail}').shards[1]
    assert (shard.url, shard.prefix) == ("cluster://a", "{mail}:")


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ('"{forkq}:"', '"forkq:"', 'redis.cluster_shards: a Redis Cluster needs a prefix'),
        ("cluster://a,b", "embedded", "redis.cluster_shards: the embedded server has no shards"),
        ("= 8", "= 65", "redis.cluster_shards: expected a whole number from 1 to 64, found"),
        ('"s3"', '"s8"', 'cluster_shards = 8 makes the shards s1 to s7, and not "s8"'),
        ('"s3"', '"s8"', "or set [redis] cluster_shards = 9"),
        ("= 8", "= 2", "cluster_shards = 2 makes the shard s1, and not"),
        ('"s3"', '"s3"\nurl = "redis://x"', '[0].url: "s3" is one of [redis] cluster_shards'),
        ('"s3"', '"s3"\nprefix = "{a}:"', "remove `prefix`, or choose another name"),
        ('"s3"', '"x"\nprefix = "x:"', "[0].prefix: a Redis Cluster needs a prefix with a n"),
        ('"s3"', '"x"\nprefix = "{forkq}x:"', '"{forkq}x:" has the slot 5739 of the shard default'),
        ('"s3"', '"x"\nurl = "cluster://a,b"', "is the server of the shard default too"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_shards_of_a_cluster_is_named(
    problems: Failer, before: str, after: str, problem: str
) -> None:
    (line,) = problems(CLUSTER.replace(before, after, 1))
    assert problem in line
