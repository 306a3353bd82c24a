"""A real Ruby Sidekiq, its web UI and a forkq tree on one Redis: each UI shows and steers both."""

from __future__ import annotations

import html
import json
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from redis import Redis
from starlette.testclient import TestClient

import forkq
import forkq.web.pages.job as job_page
from forkq import api, default_client
from forkq.cli.main import _run
from tests.support import ruby
from tests.support.ruby import SidekiqWeb
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until
from tests.web.shared import act, client_of, confirm

OBSTACLE = ruby.obstacle()
pytestmark = [
    pytest.mark.skipif(OBSTACLE is not None, reason=OBSTACLE or ""),
    pytest.mark.xdist_group("sidekiq-web"),  # three tests share the processes
]
HOST = socket.gethostname()
HOUR = 3600

# In both languages a heartbeat comes twice a second, so that no test waits ten for an order.
PYTHON = """
import os
import time
import forkq
from forkq.child.heartbeat import beat
from redis import Redis

beat.INTERVAL = 0.5
redis = Redis.from_url(os.environ["NOTES_URL"])

@forkq.job(name="Hold")
def hold(what):
    while not redis.exists("release"):
        time.sleep(0.02)

@forkq.job(name="Note")
def note(what):
    redis.rpush("ran", f"python {what}")

class Bad(forkq.Job, name="Bad"):
    def perform(self, what):
        redis.rpush("ran", f"python {what}")
        raise ValueError("boom é <b>")

    def retry_in(self, count, error, job):
        return 3600
"""
RUBY = """
require "sidekiq"
Sidekiq::Launcher.send(:remove_const, :BEAT_PAUSE)
Sidekiq::Launcher::BEAT_PAUSE = 0.5
class RubyHold
  include Sidekiq::Worker
  def perform(what) = (sleep 0.02 until Sidekiq.redis { |r| r.call("EXISTS", "release") } == 1)
end
class RubyBad
  include Sidekiq::Worker
  sidekiq_retry_in { 3600 }
  def perform(what)
    Sidekiq.redis { |r| r.rpush("ran", "ruby #{what}") }
    raise ArgumentError, "boom é <b>"
  end
end
"""


class House(NamedTuple):
    """What runs on the one Redis."""

    server: Server
    forkq: ForkqTree
    ruby: subprocess.Popen[bytes]
    ui: SidekiqWeb


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    if reason := ruby.web_obstacle():
        pytest.skip(reason)
    with ExitStack() as stack:
        server = Server(tcp=True).start()
        stack.callback(server.close)
        trees = StartTree()
        stack.callback(trees.close)
        folder = tmp_path_factory.mktemp("ruby")
        process = stack.enter_context(ruby.sidekiq(server, folder, RUBY, ("ruby",)))
        ui = stack.enter_context(ruby.sidekiq_web(server))
        flags = ["-q", "default", "-w", "2", "-c", "3", "-g", "shop"]
        tree = trees(server, app=PYTHON, args=flags, env={"NOTES_URL": server.url})
        yield House(server, tree, process, ui)


@pytest.fixture
def redis(house: House) -> Iterator[Redis]:
    """A client of that Redis, to which this process pushes. No test sees another's jobs."""
    forkq.configure(house.server.url)
    client = house.server.client()
    client.delete("ran", "retry", "dead")
    yield client
    default_client.forget()
    house.server.close_clients()


@pytest.fixture
def web(redis: Redis) -> Iterator[TestClient]:
    with client_of() as client:
        yield client


@pytest.fixture
def shell(
    redis: Redis,
    house: House,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Callable[[str], str]:
    """Runs a command of forkq, and returns what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORKQ_REDIS", house.server.url)

    def run(line: str) -> str:
        default_client.default().close()
        assert _run(line.split()) == 0, capfd.readouterr()
        return capfd.readouterr().out

    return run


def push(name: str, what: str, **more: Any) -> str:
    """Pushes a job with its word as its argument, and returns its jid."""
    queue = "ruby" if name.startswith("Ruby") else "default"
    job = {"class": name, "args": [what], "queue": queue, **more}
    return str(default_client.default().push(job))


def ran(redis: Redis, word: str) -> int:
    """How often a job with this word has run."""
    return [word.encode() in line for line in redis.lrange("ran", 0, -1)].count(True)


def wait_ran(redis: Redis, word: str, times: int = 1) -> None:
    wait_until(lambda: ran(redis, word) == times, deadline=60, what=f"{times} runs of {word}")


def words(redis: Redis, key: str) -> list[str]:
    """The words of the jobs in this set or queue."""
    is_list = redis.type(key) == b"list"
    members: Any = redis.lrange(key, 0, -1) if is_list else redis.zrange(key, 0, -1)
    return sorted(json.loads(member)["args"][0] for member in members)


def process_of(pid: int) -> api.Process | None:
    return next((process for process in api.ProcessSet() if process.pid == pid), None)


def wait_quiet(pid: int) -> None:
    wait_until(lambda: (found := process_of(pid)) is not None and found.quiet, deadline=60,
               what=f"the quiet process {pid}")  # fmt: skip


def stats(house: House) -> tuple[int, int]:
    """How many processes Sidekiq's UI counts, and how many of their threads run a job."""
    found = json.loads(house.ui.get("/stats").body)["sidekiq"]
    return found["processes"], found["busy"]


def wait_words(redis: Redis, key: str, *expected: str) -> None:
    wait_until(lambda: words(redis, key) == sorted(expected), what=f"{expected} in {key}")


def fail(redis: Redis, name: str, *names: str) -> dict[str, str]:
    """Lets jobs of these words fail. Returns their jids once they wait for their next try."""
    jids = {word: push(name, word, backtrace=True) for word in names}
    for word in names:
        wait_ran(redis, word)
    wait_until(lambda: set(names) <= set(words(redis, "retry")), what=f"{names} in retry")
    return jids


# Sidekiq's UI


def test_sidekiqs_ui_lists_the_children_of_forkq_and_their_jobs(house: House, redis: Redis) -> None:
    jid = push("Hold", "é <b>")
    wait_until(lambda: stats(house) == (3, 1), deadline=60, what="all processes and the job")
    children = [f"{HOST}:{child.pid} shop" for child in house.forkq.children("default.")]
    assert len(children) == 2
    row = re.compile(rf'\w+ {jid} default Hold "é <b>"')

    def shown() -> bool:
        text = house.ui.get("/busy").text
        return bool(row.search(text)) and all(child in text for child in children)

    wait_until(shown, deadline=60, what="the children and the running job")
    redis.set("release", 1)
    wait_until(lambda: jid not in house.ui.get("/busy").text, deadline=60, what="the job's end")
    redis.delete("release")


def test_sidekiqs_ui_acts_on_the_jobs_of_forkq(house: House, redis: Redis) -> None:
    ui = house.ui
    for word in ("one", "two", "three"):
        push("Note", word, queue="idle")
    assert "idle 3" in ui.get("/queues").text
    ui.press("/queues/idle", "delete", of="two")
    assert words(redis, "queue:idle") == ["one", "three"]
    ui.press("/queues", "delete", of="queues/idle")
    assert not redis.exists("queue:idle")

    due, gone = (push("Note", word, at=HOUR) for word in ("due", "gone"))
    ui.press("/scheduled", "add_to_queue", key=[ui.get("/scheduled").key(due)])
    wait_ran(redis, "due")
    ui.press("/scheduled", "delete", key=[ui.get("/scheduled").key(gone)])
    assert not redis.exists("schedule")

    jids = fail(redis, "Bad", "again", "killed", "deleted", "kept")
    shown = ui.get("/retries")
    assert "ValueError: boom é <b>" in shown.text
    page = f"/retries/{shown.key(jids['again'])}"
    assert "jobs.py" in ui.get(page).text  # the backtrace
    ui.press(page, "retry")
    wait_ran(redis, "again", 2)
    wait_words(redis, "retry", "again", "killed", "deleted", "kept")
    ui.press("/retries", "kill", key=[ui.get("/retries").key(jids["killed"])])
    ui.press("/retries", "delete", key=[ui.get("/retries").key(jids["deleted"])])
    assert words(redis, "retry") == ["again", "kept"]
    assert words(redis, "dead") == ["killed"]

    assert jids["killed"] in ui.get("/morgue").body
    ui.press(f"/morgue/{ui.get('/morgue').key(jids['killed'])}", "retry")
    wait_ran(redis, "killed", 2)
    wait_words(redis, "retry", "again", "killed", "kept")
    ui.press("/retries", "kill", of="retries/all/kill")
    assert words(redis, "dead") == ["again", "kept", "killed"]
    ui.press("/morgue", "delete", key=[ui.get("/morgue").key(jids["again"])])
    ui.press("/morgue", "retry", of="morgue/all/retry")
    wait_ran(redis, "kept", 2)
    wait_words(redis, "retry", "kept", "killed")
    ui.press("/retries", "delete", of="retries/all/delete")
    assert not redis.exists("retry", "dead")


# forkq's UI and commands


Shell = Callable[[str], str]


def test_forkq_shows_a_ruby_process_and_its_job(
    house: House,
    redis: Redis,
    web: TestClient,
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jid = push("RubyHold", "é <b>")
    place = f"{HOST}:{house.ruby.pid}"
    wait_until(lambda: jid in shell("running"), deadline=60, what="the running job")
    assert re.search(rf"{jid} +RubyHold +ruby .* {re.escape(place)}", shell("running"))
    wait_until(
        lambda: re.search(r"^ruby +0 +1 ", shell("queues"), re.MULTILINE),
        deadline=60,
        what="the busy queue",
    )
    row = rf"{HOST} +{house.ruby.pid} .* 1 of 2 .* running +ruby"
    wait_until(lambda: re.search(row, shell("processes")), deadline=60, what="its busy thread")
    shown = shell(f"processes show {place}")
    assert f"runs        {jid} RubyHold" in shown
    assert re.search(rf"location +running\n.*\nowner +{place}:", shell(f"find {jid}"))
    assert api.is_alive(jid)
    link = f"/job?queue=ruby&amp;jid={jid}"
    wait_until(lambda: link in web.get("/busy").text, what="the job on the busy page")
    assert "Sidekiq" in web.get("/busy").text
    assert "RubyHold" in web.get(f"/job?jid={jid}").text
    monkeypatch.setattr(job_page, "_FEW", -1)  # as with many jobs: no other queue is read
    assert "RubyHold" in web.get(html.unescape(link)).text
    redis.set("release", 1)
    wait_until(lambda: jid not in shell("running"), deadline=60, what="the job's end")
    redis.delete("release")


def test_forkq_acts_on_the_failed_jobs_of_ruby(
    house: House, redis: Redis, web: TestClient, shell: Shell
) -> None:
    jids = fail(redis, "RubyBad", "web", "shell", "killed", "deleted")
    assert "boom é &lt;b&gt;" in web.get("/retries").text
    assert "jobs.rb:" in web.get(f"/job?jid={jids['web']}").text  # the backtrace
    assert "jobs.rb:" in shell(f"retries show {jids['shell']}")
    [key] = re.findall(r'name="key" value="([^"]+)"', web.get(f"/retries?jid={jids['web']}").text)
    assert act(web, "/retries/retry", key=html.unescape(key)).status_code == 303
    shell(f"retry {jids['shell']}")
    wait_ran(redis, "web", 2)
    wait_ran(redis, "shell", 2)
    shell(f"retries kill {jids['killed']}")
    shell(f"retries delete {jids['deleted']} --yes")
    wait_words(redis, "retry", "shell", "web")
    assert jids["killed"] in shell("dead --class RubyBad")
    shell("dead retry --class RubyBad --yes")
    wait_ran(redis, "killed", 2)
    wait_words(redis, "retry", "killed", "shell", "web")


# The orders: each ends what the tests above need


def test_sidekiqs_ui_quiets_and_stops_children_of_forkq(house: House, redis: Redis) -> None:
    quiet, stopped = (child.pid for child in house.forkq.children("default."))
    house.ui.press("/busy", "quiet", of=f"{HOST}:{quiet}:")
    wait_quiet(quiet)
    wait_until(lambda: "quiet" in house.ui.get("/busy").text, what="the mark in Sidekiq's UI")
    house.ui.press("/busy", "stop", of=f"{HOST}:{stopped}:")
    wait_until(
        lambda: {quiet, stopped} ^ {child.pid for child in house.forkq.children("default.")}
        and len(house.forkq.children("default.")) == 2,
        deadline=60, what="a new child in the place of the stopped one",
    )  # fmt: skip
    left = {child.pid for child in house.forkq.children("default.")}
    assert quiet in left
    assert stopped not in left


def test_forkq_quiets_and_stops_a_ruby_process(house: House, web: TestClient, shell: Shell) -> None:
    pid = house.ruby.pid
    found = wait_until(lambda: process_of(pid), deadline=60, what="its record")
    assert found is not None
    assert "It is Sidekiq" in act(web, "/busy/stop", identity=found.identity).text
    assert confirm(web, "/busy/quiet", identity=found.identity).status_code == 303
    wait_quiet(pid)
    assert re.search(rf"{HOST} +{pid} .* quiet +ruby", shell("processes"))
    assert "1 process told to stop" in shell(f"processes stop {HOST}:{pid} --yes")
    assert house.ruby.wait(60) == 0
