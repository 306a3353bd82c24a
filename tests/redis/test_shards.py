"""Pushing to several Redis, and the API on them: the name of a queue decides which one."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from structlog.testing import CapturingLogger

import forkq
from forkq import api, default_client, middleware, registry
from forkq.cli.main import _run
from forkq.cli.start import _check_servers
from forkq.client import Client
from forkq.config.load import load
from forkq.errors import ConfigError, ForkqError, ServerUnavailable
from forkq.screens import job_acts
from forkq.sharded_client import ShardedClient
from forkq.store import unserved_queues
from tests.support.server import Server

TEXT = """
[redis]
url = "{}"
[[redis.shards]]
name = "mail"
url = "{}"
queues = ["mail", "mail.*"]
"""


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    found = [Server().start(), Server().start()]
    yield found
    for server in found:
        server.close()


@pytest.fixture
def both(servers: list[Server]) -> Iterator[list[Redis]]:
    """Clients of the default shard and of ``mail``."""
    yield [server.client() for server in servers]
    for server in servers:
        server.close_clients()


@pytest.fixture
def client(
    both: list[Redis], servers: list[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ShardedClient]:
    """The default client of a process whose forkq.toml has the two shards."""
    (tmp_path / "forkq.toml").write_text(TEXT.format(*(server.url for server in servers)))
    before = default_client.swap(None)
    client = default_client.use(load(None, {}, {}, tmp_path))
    assert isinstance(client, ShardedClient)
    yield client
    client.close()
    default_client.swap(before)


def job(queue: str, *args: object, **more: object) -> dict[str, Any]:
    return {"class": "J", "args": [*args], "queue": queue, **more}


def sizes(both: list[Redis], key: str, command: str = "llen") -> list[int]:
    return [getattr(redis, command)(key) for redis in both]


def test_a_kill_tells_what_the_dead_set_of_that_shard_loses(
    client: ShardedClient, both: list[Redis]
) -> None:
    default, mail = both
    default.zadd("forkq:dead:bounds", {"100 180": 1.0})
    mail.zadd("forkq:dead:bounds", {"1 180": 1.0})
    client.push_bulk({**job("mail"), "args": [[1], [2]]})
    plan = job_acts.kill(job_acts.all_in_queue(api.server("mail"), "mail"))
    assert "of 2, forkq deletes the oldest 1 for good" in plan.details[-1]
    plan.do()
    assert sizes(both, "dead", "zcard") == [0, 2]


def test_a_job_of_a_shard_is_found_again_by_its_key(
    client: ShardedClient, both: list[Redis]
) -> None:
    """Each shard has a secret of its own."""
    client.push(job("mail", 1, jid="a", at=4_000_000_000))
    mail = api.ScheduledSet(api.server("mail"))
    [entry] = mail
    assert mail.get(entry.key) == entry
    found = api.entry("a")
    assert found is not None
    assert found.key == entry.key
    assert [redis.exists("forkq:secret") for redis in both] == [0, 1]


def test_a_push_goes_to_the_shard_of_its_queue(client: ShardedClient, both: list[Redis]) -> None:
    """One by one, in bulk and for later; each server knows its queues only."""
    client.push(job("default"))
    client.push(job("mail.eu"))
    client.push(job("mail", at=4_000_000_000))
    client.push_bulk({**job("mail"), "args": [[1], [2]]})
    assert sizes(both, "queue:default") == [1, 0]
    assert sizes(both, "queue:mail.eu") == [0, 1]
    assert sizes(both, "queue:mail") == [0, 2]
    assert sizes(both, "schedule", "zcard") == [0, 1]
    assert [redis.smembers("queues") for redis in both] == [{b"default"}, {b"mail", b"mail.eu"}]


@pytest.fixture
def odd_to_mail() -> Iterator[None]:
    """A client middleware that sends every second job of a bulk push to the other shard."""

    def route(payload: dict[str, Any], call: Callable[[], Any]) -> Any:
        payload["queue"] = "mail" if payload["args"][0] % 2 else "default"
        return call()

    middleware.client.append(route)
    yield
    middleware.client.remove(route)


@pytest.mark.usefixtures("odd_to_mail")
def test_a_shard_that_is_down_keeps_no_other_one_from_its_jobs(
    client: ShardedClient, servers: list[Server], both: list[Redis]
) -> None:
    """The error has the jids of all shards."""
    rows = {**job("default"), "args": [[number] for number in range(5)]}
    assert len(client.push_bulk(rows)) == 5
    assert [sizes(both, "queue:default"), sizes(both, "queue:mail")] == [[3, 0], [0, 2]]
    servers[1].kill()
    with pytest.raises(ServerUnavailable) as caught:
        client.push_bulk(rows)
    assert str(caught.value).startswith("shard mail: ")
    assert str(caught.value).endswith("over all shards 3 of 5 jobs were pushed")
    assert (len(caught.value.pushed), caught.value.unknown) == (3, ())
    assert both[0].llen("queue:default") == 6


@pytest.mark.usefixtures("odd_to_mail")
def test_each_shard_that_is_down_is_named(client: ShardedClient, servers: list[Server]) -> None:
    for server in servers:
        server.kill()
    with pytest.raises(ServerUnavailable) as caught:
        client.push_bulk({"class": "J", "queue": "default", "args": [[1], [2]]})
    text = str(caught.value)
    assert "shard default: Redis at" in text
    assert "shard mail: Redis at" in text
    assert text.endswith("over all shards 0 of 2 jobs were pushed")


def test_a_queue_is_read_and_controlled_on_its_shard(
    client: ShardedClient, both: list[Redis]
) -> None:
    jids = [client.push(job("mail", number)) for number in range(3)]
    queue = api.Queue("mail")
    assert (queue.size, [entry.jid for entry in queue]) == (3, jids)
    assert next(iter(queue)).delete()
    assert queue.delete_all(dry_run=True).matched == 2
    queue.limit = 2
    assert queue.pause()
    assert (queue.limit, queue.paused, queue.report().state.size) == (2, True, 2)
    assert sizes(both, "paused", "scard") == [0, 1]
    assert queue.clear() == 2
    assert sizes(both, "queue:mail") == [0, 0]


def test_all_else_is_about_the_default_shard_or_the_given_one(client: ShardedClient) -> None:
    client.push(job("mail", at=4_000_000_000))
    assert api.shards() == ["default", "mail"]
    assert (api.shards_of("mail.x"), api.shards_of("x")) == (["mail"], ["default"])
    assert (api.stats().scheduled, api.ScheduledSet().size) == (0, 0)
    mail = api.server("mail")
    assert (api.stats(mail).scheduled, api.ScheduledSet(mail).size) == (1, 1)
    assert [api.stats(server).scheduled for server in api.servers()] == [0, 1]
    client.push(job("default"))
    assert api.Queue("default", mail).size == 0  # a queue of that shard, by that name
    assert api.Queue("default").size == 1
    with pytest.raises(ConfigError, match="there are default, mail"):
        api.server("x")


def test_an_object_that_is_made_before_the_configuration_is_about_it(
    client: ShardedClient, redis_server: Server
) -> None:
    """An app may make a queue where it defines its jobs, and configure forkq later."""
    queue, dead = api.Queue("mail"), api.DeadSet()
    assert (queue.server.name, dead.server.name) == ("mail", "default")
    before = default_client.swap(forkq.Client(redis_server.url))
    try:
        assert (queue.server.name, dead.server.name) == ("", "")
    finally:
        last = default_client.swap(before)
        assert last is not None
        last.close()


def test_a_jid_is_looked_for_on_all_shards(client: ShardedClient) -> None:
    """An answer of one shard alone would say of a living job that it is gone."""
    jids = [client.push(job("mail")), client.push(job("default", at=4_000_000_000))]
    for jid in map(str, jids):
        assert api.is_alive(jid)
        assert api.find(jid) is not None
    mail = api.server("mail")
    assert [api.is_alive(str(jid), mail) for jid in jids] == [True, False]
    assert api.find("nowhere") is None


def test_a_shard_that_is_down_hides_no_job_of_another_one(
    client: ShardedClient, servers: list[Server]
) -> None:
    jid = client.push(job("mail"))
    assert jid is not None
    servers[0].kill()
    assert api.is_alive(jid)
    entry = api.entry(jid)
    assert entry is not None
    assert entry.queue == "mail"
    with pytest.raises(ServerUnavailable):
        api.is_alive("0" * 24)  # it may be on the shard that is down


def test_deleted_jobs_are_put_back_on_their_shard(
    client: ShardedClient, both: list[Redis], shell: Shell
) -> None:
    for number in range(3):
        client.push(job("mail", number))
    token = api.Queue("mail").delete_all(undo=True).undo
    assert sizes(both, "queue:mail") == [0, 0]
    assert api.undo(token).done == 3
    assert sizes(both, "queue:mail") == [0, 3]
    token = api.Queue("mail").delete_all(undo=True).undo
    assert shell(f"undo {token}") == 0
    assert sizes(both, "queue:mail") == [0, 3]
    with pytest.raises(ForkqError, match="nothing is kept"):
        api.undo(token)


def test_an_entry_is_acted_on_where_it_was_read(client: ShardedClient, both: list[Redis]) -> None:
    jids = [str(client.push(job("mail", at=4_000_000_000))) for _ in range(2)]
    client.push(job("mail"))
    first, _ = api.ScheduledSet(api.server("mail"))
    assert first.delete()
    found = api.entry(jids[0]) or api.entry(jids[1])
    assert found is not None
    assert found.add_to_queue()
    assert sizes(both, "queue:mail") == [0, 2]
    [entry, _] = list(api.Queue("mail"))
    with pytest.raises(ConfigError, match='"default" is on the shard default'):
        entry.move("default")
    assert entry.move("mail.eu")
    assert sizes(both, "queue:mail.eu") == [0, 1]


def test_secrets_are_known_by_what_children_of_the_same_shard_publish(
    client: ShardedClient, both: list[Redis]
) -> None:
    default, mail = both
    default.hset("forkq:parameters", "J", '{"names": ["token", "to"]}')
    mail.hset("forkq:parameters", "J", '{"names": ["to", "token"]}')
    client.push(job("mail", "a", "b"))
    client.push(job("default", "a", "b"))
    mail.zadd("dead", {json.dumps(job("mail", "a", "b", jid="c1")): 1})
    assert [entry.args for entry in api.Queue("mail")] == [["a", "***"]]
    assert [entry.args for entry in api.Queue("default")] == [["***", "b"]]
    [entry] = api.DeadSet(api.server("mail"))
    assert entry.args == ["a", "***"]
    assert json.loads(entry.masked)["args"] == ["a", "***"]


def test_in_a_child_of_another_shard_the_api_is_about_the_default_one_too(
    client: ShardedClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_client, "_server_config", None)
    client.push(job("mail", at=4_000_000_000))
    default_client.serve(load(None, {}, {}, tmp_path).of_shard("mail"))
    try:
        assert api.ScheduledSet().size == 0
        assert api.ScheduledSet(api.server("mail")).size == 1
    finally:
        default_client.default().close()


def test_no_job_moves_from_one_redis_to_another(client: ShardedClient) -> None:
    """It would wait on a shard where no child may look for it."""
    client.push(job("mail"))
    client.push(job("default", at=4_000_000_000))
    assert api.Queue("mail").move_all("mail.eu").done == 1
    with pytest.raises(
        ConfigError, match='"default" is on the shard default, the jobs are on mail'
    ):
        api.Queue("mail.eu").move_all("default")
    with pytest.raises(ConfigError, match='"mail" is on the shard mail, the jobs are on default'):
        api.ScheduledSet().move_all("mail")
    assert (api.Queue("mail.eu").size, api.ScheduledSet().size) == (1, 1)


def test_a_periodic_job_is_on_the_shard_of_its_queue(
    client: ShardedClient, both: list[Redis]
) -> None:
    api.cron.add("letters", "@daily", "J", queue="mail")
    assert sizes(both, "forkq:cron", "hlen") == [0, 1]
    assert api.cron.list() == []
    mail = api.server("mail")
    assert api.cron.get("letters", mail).entry.job["queue"] == "mail"
    assert api.cron.run("letters", mail)
    assert sizes(both, "queue:mail") == [0, 1]


def test_without_shards_there_is_none(redis_server: Server) -> None:
    before = default_client.swap(forkq.Client(redis_server.url))
    try:
        assert (api.shards(), api.shards_of("mail")) == ([], [])
        assert [server.name for server in api.servers()] == [""]
        with pytest.raises(ConfigError, match=r"has no \[\[redis\.shards\]\]"):
            api.server("default")
    finally:
        last = default_client.swap(before)
        assert last is not None
        last.close()


def test_an_unserved_queue_is_looked_for_on_its_shard(
    client: ShardedClient, both: list[Redis], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    config = load(None, {}, {}, tmp_path)
    default_client._warn_of_unserved_queues(client, config)
    info = b'{"hostname":"h","pid":1,"started_at":1.0,"queues":["mail.eu"]}'
    both[1].sadd("processes", "h:1:a")
    both[1].hset("h:1:a", "info", info)
    client.push(job("mail.eu"))  # a living process of that shard serves it
    client.push(job("mail.us"))
    unserved_queues.finish(10.0)
    warned = [record.getMessage() for record in caplog.records]
    assert [text.split('"')[1] for text in warned] == ["mail.us"]


class Shell:
    """Runs commands in the folder of forkq.toml; ``out`` and ``err``: what one printed."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd
        self.out = self.err = ""

    def __call__(self, line: str) -> int:
        default_client.default().close()
        code = _run(line.split())
        self.out, self.err = self._capfd.readouterr()
        return code


@pytest.fixture
def shell(
    client: ShardedClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Iterator[Shell]:
    monkeypatch.chdir(tmp_path)
    yield Shell(capfd)
    default_client.default().close()


def test_a_command_that_lists_shows_each_shard(
    client: ShardedClient, servers: list[Server], shell: Shell
) -> None:
    """One that is down is told, and hides no other one."""
    client.push(job("default"))
    client.push(job("mail"))
    client.push(job("mail.eu"))
    assert shell("queues list") == 0
    lines = [line.split()[:2] for line in shell.out.splitlines() if line]
    assert [line for line in lines if line[0] != "QUEUE"] == [
        *(["shard", "default"], ["default", "1"]),
        *(["shard", "mail"], ["mail", "1"], ["mail.eu", "1"]),
    ]
    assert shell("queues list --json") == 0
    found = [json.loads(line) for line in shell.out.splitlines()]
    assert [(each["shard"], each["name"]) for each in found] == [
        ("default", "default"), ("mail", "mail"), ("mail", "mail.eu"),
    ]  # fmt: skip
    servers[0].kill()
    assert shell("stats --json") == 6
    assert json.loads(shell.out)["shard"] == "mail"
    assert shell.err.startswith("forkq: shard default: ")


def test_a_command_about_a_queue_finds_its_shard(client: ShardedClient, shell: Shell) -> None:
    """The queues of one command may be on several."""
    jid = client.push(job("mail"))
    assert shell("queues show mail --json") == 0
    assert json.loads(shell.out)["size"] == 1
    assert shell("pause mail default") == 0
    assert (api.Queue("mail").paused, api.Queue("default").paused) == (True, True)
    assert shell(f"find {jid}") == 0
    assert re.search("^shard +mail$", shell.out, re.MULTILINE)
    assert "queued" in shell.out
    assert "nowhere" not in shell.out
    assert shell("find nowhere") == 1
    assert shell.out.count("nowhere is nowhere") == 1
    assert shell("push J 1 --queue mail --force") == 0
    assert api.Queue("mail").size == 2


def test_a_job_is_retried_on_its_shard(client: ShardedClient, shell: Shell) -> None:
    jid = client.push(job("mail", at=4_000_000_000))
    assert shell(f"retry {jid}") == 0
    assert shell("queues show mail --json") == 0
    assert json.loads(shell.out)["size"] == 1


def test_a_batch_a_flow_and_what_has_a_jid_are_looked_for_on_each_shard(
    client: ShardedClient, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands that they print, too, need no --shard."""
    monkeypatch.setattr(registry, "_jobs", {})
    job_of_mail = forkq.job(name="J", queue="mail", result_ttl=60)(lambda number: None)
    with forkq.Batch("import", on_finish=job_of_mail.s(0)) as batch:
        jid = job_of_mail.perform_async(1)
    flow = forkq.Flow("report", job_of_mail.s(2) | job_of_mail.s(3))
    flow.push()
    for command, said in (
        (f"batches show {batch.bid}", "import"),
        ("batches list", "import"),
        (f"batches cancel {batch.bid}", "cancelled"),
        (f"flows show {flow.bid}", "waits for J"),
        ("flows list", "report"),
        (f"flows cancel {flow.bid}", "cancelled"),
        (f"result {jid}", ""),
        (f"steps {jid}", ""),
        (f"cancel {jid}", ""),
        ("signal approved --key 7", "approved"),
    ):
        assert shell(command) in (0, 1)
        assert said in shell.out + shell.err
        assert "of which shard" not in shell.err
    events = [one.ask(("EXISTS", one.keys.event("approved:7"))) for one in client.servers]
    assert events == [[1], [1]]


def test_the_metrics_have_each_shard_as_a_label(
    client: ShardedClient, servers: list[Server], shell: Shell
) -> None:
    """One that is down is told, and hides no other one."""
    pytest.importorskip("prometheus_client", reason="missing: pip install --group test")
    client.push(job("mail"))
    assert shell("metrics --once") == 0
    assert 'forkq_queue_size{queue="mail",shard="mail"} 1.0' in shell.out
    assert 'forkq_queues{shard="default"} 0.0' in shell.out
    servers[0].kill()
    assert shell("metrics --once") == 6
    assert 'forkq_up{shard="default"} 0.0' in shell.out
    assert 'forkq_queue_size{queue="mail",shard="mail"} 1.0' in shell.out
    assert shell.err.startswith("forkq: shard default: ")
    assert shell("metrics --once --shard mail") == 0
    assert 'forkq_queue_size{queue="mail"} 1.0' in shell.out


@pytest.mark.parametrize("command", ["web", "metrics"])
def test_one_server_serves_all_shards(client: ShardedClient, command: str, shell: Shell) -> None:
    """No shard must be named: it goes as far as its address, which is in use."""
    pytest.importorskip({"web": "uvicorn", "metrics": "prometheus_client"}[command])
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert shell(f"{command} --listen 127.0.0.1:{other.getsockname()[1]}") == 1
    assert "cannot listen at" in shell.err


def test_an_exporter_is_ready_while_one_shard_answers(
    client: ShardedClient, servers: list[Server]
) -> None:
    exposition = pytest.importorskip(
        "forkq.metrics.exposition", reason="missing: pip install --group test"
    )
    with ExitStack() as stack:
        clients = {one.name: Client(one.url) for one in client.shards}
        for one in clients.values():
            stack.enter_context(closing(one))
        found = exposition.Exposition({name: partial(dict.get, clients, name) for name in clients})
        servers[0].kill()
        assert found.check() == ""
        servers[1].kill()
        assert re.match("shard default: .*; shard mail: ", found.check())


def test_any_other_command_asks_for_the_shard(client: ShardedClient, shell: Shell) -> None:
    client.push(job("mail", at=4_000_000_000))
    assert shell("scheduled clear -y") == 2
    assert "of which shard? Name it with --shard: default, mail" in shell.err
    assert shell("scheduled clear -y --shard x") == 2
    assert 'there is no shard "x"' in shell.err
    assert shell("scheduled clear -y --shard default") == 1
    assert shell("scheduled clear -y --shard mail") == 0
    assert api.ScheduledSet(api.server("mail")).size == 0


def test_without_shards_no_shard_can_be_named(
    shell: Shell, redis_server: Server, tmp_path: Path
) -> None:
    (tmp_path / "forkq.toml").write_text(f'[redis]\nurl = "{redis_server.url}"')
    assert shell("stats --shard default") == 2
    said = 'there is no shard "default": the configuration has no [[redis.shards]]\n'
    assert shell.err.endswith(said)
    assert shell("stats") == 0
    assert "shard" not in shell.out


def test_the_start_names_the_shard_that_is_away(
    client: ShardedClient, servers: list[Server], tmp_path: Path
) -> None:
    servers[1].kill()
    log: Any = CapturingLogger()
    config = load(None, {}, {}, tmp_path)
    _check_servers(config, log)
    (hint,) = (call.kwargs["hint"] for call in log.calls if call.method_name == "error")
    assert hint == 'check the url of the shard "mail" in [[redis.shards]]'


def test_doctor_names_the_shard_that_is_down(servers: list[Server], shell: Shell) -> None:
    servers[1].kill()
    assert shell("doctor") == 1
    [line] = [line for line in shell.out.splitlines() if " redis@mail " in line]
    assert "no job of its queues runs" in line
    assert 'check the url of the shard "mail" in [[redis.shards]]' in line


@pytest.mark.parametrize("database", [0, 7])
def test_a_server_with_two_names_is_no_two_shards(
    database: int, servers: list[Server], tmp_path: Path, shell: Shell
) -> None:
    """Two databases of it are: they share no key."""
    found = servers[0].socket
    again = f"unix://{found.parent}/./{found.name}?db={database}"
    (tmp_path / "forkq.toml").write_text(TEXT.format(servers[0].url, again))
    wrong = f"{again} is the server of the shard default too"
    with ExitStack() as refusal:
        if database == 0:
            says = rf"shard mail: {re.escape(wrong)}.*check the url of the shard \"mail\""
            refusal.enter_context(pytest.raises(ConfigError, match=says))
        _check_servers(load(None, {}, {}, tmp_path), CapturingLogger())
    shell("doctor")
    assert (wrong in shell.out) == (database == 0)
