"""forkq and a real Ruby Sidekiq on one Redis: each runs, lists and reads what the other wrote."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis import Redis

import forkq
from forkq import api, default_client, middleware, registry
from forkq.child.heartbeat.beat import Heartbeat
from forkq.child.heartbeat.record import Record, describe
from forkq.child.heartbeat.round_trip import RoundTrip
from forkq.child.heartbeat.stats import Totals
from forkq.child.heartbeat.stats_flush import StatsFlusher
from forkq.child.heartbeat.tasks import FlushStats, Snapshot, TakeOrder, WriteRecord
from forkq.clock.due_jobs import DueJobMover
from forkq.config.capsule import Capsule
from forkq.config.load import load
from forkq.store.connection import RedisConnection
from forkq.store.outage import Outage
from forkq.wire.keys import Keys
from forkq.wire.lease import Progress, UnitOfWork
from forkq.wire.times import now
from tests.redis.in_process_child import IDENTITY, InProcessChild
from tests.redis.test_processor import malformed
from tests.support import ruby as ruby_support
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until

OBSTACLE = ruby_support.obstacle()
pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=OBSTACLE or "")

# The same jobs on both sides. Each notes in the list `notes` who ran it, and with what.
RUBY_JOBS = """
require "sidekiq"
require "json"
def note(name, args, extra = nil)
  Sidekiq.redis { |r| r.rpush("notes", JSON.dump(["ruby", name, args, extra])) }
end
class HardJob
  include Sidekiq::Worker
  def perform(*args) = note("HardJob", args)
end
class BadJob
  include Sidekiq::Worker
  sidekiq_options retry: 5, backtrace: 3
  def perform(*args)
    note("BadJob", args)
    raise ArgumentError, "boom é"
  end
end
class LastJob
  include Sidekiq::Worker
  sidekiq_options retry: 0
  def perform(*args) = raise("dead now")
end
"""

PYTHON_JOBS = """
import json, os
import forkq
from redis import Redis

redis = Redis.from_url(os.environ["NOTES_URL"])

def note(name, args):
    count = forkq.current_job().retry_count
    redis.rpush("notes", json.dumps(["python", name, args, count]))

@forkq.job(name="HardJob")
def hard(*args):
    note("HardJob", list(args))

@forkq.job(name="BadJob")
def bad(*args):
    note("BadJob", list(args))
    raise ValueError("boom é")

@forkq.job(name="LastJob")
def last(*args):
    raise RuntimeError("dead now")
"""

Ruby = Callable[[str], Any]


@pytest.fixture
def ruby(redis: Redis, redis_server: Server) -> Ruby:
    """Runs Ruby code with Sidekiq's API and the jobs above; returns what it puts into `out`."""

    def run(code: str) -> Any:
        program = f"{RUBY_JOBS}\nrequire 'sidekiq/api'\nout = nil\n{code}\nputs JSON.dump(out)"
        done = subprocess.run(
            ["ruby", "-e", program],
            env={**os.environ, "REDIS_URL": redis_server.url},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def sidekiq(
    server: Server, folder: Path
) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """A real `sidekiq` process on the queues default and low, surely gone afterwards."""
    return ruby_support.sidekiq(server, folder, RUBY_JOBS)


@pytest.fixture
def jobs(redis_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The Python jobs, registered in this process, which pushes to the shared server."""
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    monkeypatch.setattr(middleware, "server", middleware.Chain())
    monkeypatch.setattr(default_client, "_default", None)
    monkeypatch.setenv("NOTES_URL", redis_server.url)
    client = forkq.configure(redis_server.url, environ={})
    names: dict[str, Any] = {"__name__": "jobs"}
    exec(compile(PYTHON_JOBS, "jobs.py", "exec"), names)  # noqa: S102 - our own text, as the app's
    yield names
    names["redis"].close()
    client.close()


def notes(redis: Redis) -> list[list[Any]]:
    """Who ran what so far: [side, job, arguments, retry count]."""
    return [json.loads(line) for line in redis.lrange("notes", 0, -1)]


def wait_notes(redis: Redis, count: int) -> list[list[Any]]:
    wait_until(lambda: redis.llen("notes") >= count, deadline=30, what=f"{count} jobs to run")
    return notes(redis)


def make_due(redis: Redis, name: str) -> None:
    """Time passes: every entry of this set is due."""
    members: Any = redis.zrange(name, 0, -1)
    redis.zadd(name, {member: now() - 60 + number for number, member in enumerate(members)})


def only(redis: Redis, name: str) -> dict[str, Any]:
    """The one job of this set."""
    members: Any = redis.zrange(name, 0, -1)
    [found] = map(json.loads, members)
    return dict(found)


# Ruby pushes, forkq runs


def test_jobs_that_ruby_pushes_run_in_a_forkq_child_and_sidekiq_sees_all_of_it(
    ruby: Ruby, redis: Redis, redis_server: Server, tree: StartTree
) -> None:
    forkq_tree = tree(
        redis_server,
        app=PYTHON_JOBS,
        args=["-q", "default", "-q", "low", "-c", "3", "-g", "interop"],
        env={"NOTES_URL": redis_server.url},
    )
    jids = ruby("""
      out = [
        HardJob.perform_async(1, "é", 2.5, nil, {"k" => [123456789012345678901234567890]}),
        HardJob.perform_in(0.2, "later"),
        HardJob.set(queue: "low").perform_async("low"),
        BadJob.perform_async("bad"),
        LastJob.perform_async("last"),
      ] + Sidekiq::Client.push_bulk("class" => "HardJob", "args" => [["bulk 1"], ["bulk 2"]])
    """)
    ran = wait_notes(redis, 6)
    assert sorted(ran, key=repr) == sorted(
        [
            [
                "python",
                "HardJob",
                [1, "é", 2.5, None, {"k": [123456789012345678901234567890]}],
                None,
            ],
            ["python", "HardJob", ["later"], None],
            ["python", "HardJob", ["low"], None],
            ["python", "HardJob", ["bulk 1"], None],
            ["python", "HardJob", ["bulk 2"], None],
            ["python", "BadJob", ["bad"], None],
        ],
        key=repr,
    )
    wait_until(lambda: redis.zcard("retry") and redis.zcard("dead"), what="both failures")
    seen = ruby("""
      retry_entry = Sidekiq::RetrySet.new.first
      dead = Sidekiq::DeadSet.new.first
      process = Sidekiq::ProcessSet.new.first
      out = {
        retry: [retry_entry.klass, retry_entry.args, retry_entry.jid, retry_entry.queue,
                retry_entry["retry_count"], retry_entry["error_class"],
                retry_entry["error_message"], retry_entry["retry"],
                retry_entry.at.to_f - retry_entry["failed_at"]],
        trace: retry_entry.error_backtrace,
        dead: [dead.klass, dead.args, dead.jid, dead["error_message"], dead["retry_count"]],
        process: [process["concurrency"], process["queues"], process.tag, process.stopping?,
                  process["pid"], process["hostname"], process.identity],
        sizes: [Sidekiq::Stats.new.retry_size, Sidekiq::Stats.new.dead_size,
                Sidekiq::Stats.new.enqueued, Sidekiq::Stats.new.processes_size],
      }
    """)
    assert seen["retry"][:8] == [
        "BadJob", ["bad"], jids[3], "default", 0, "ValueError", "boom é", 5
    ]  # fmt: skip
    assert 10 < seen["retry"][8] < 30
    assert len(seen["trace"]) == 3
    assert "in `bad'" in seen["trace"][0]
    assert seen["dead"] == ["LastJob", ["last"], jids[4], "dead now", 0]
    [child] = forkq_tree.children("default.0")
    assert seen["process"][:5] == [3, ["default", "low"], "interop", False, child.pid]
    assert seen["process"][6].startswith(f"{seen['process'][5]}:{child.pid}:")
    assert seen["sizes"] == [1, 1, 0, 1]
    assert forkq_tree.stop() == 0
    assert ruby("""
      stats = Sidekiq::Stats.new
      out = [stats.processed, stats.failed, Sidekiq::ProcessSet.new.size,
             Sidekiq::Stats::History.new(1).processed.values]
    """) == [8 - 1, 2, 0, [7]]  # fmt: skip


# forkq pushes, Sidekiq lists


def test_what_forkq_pushes_is_listed_and_read_by_sidekiqs_api(
    ruby: Ruby, jobs: dict[str, Any]
) -> None:
    hard = jobs["hard"]
    first = hard.set(tags=["t"], custom={"x": 1}).perform_async(1, "é", None, {"k": []})
    bulk = hard.perform_bulk([("a",), ("b",)])
    later = hard.set(queue="low").perform_in(3600, "later")
    default_client.default().push({"class": "Some::RubyJob", "args": [], "queue": "ruby"})
    seen = ruby("""
      queue = Sidekiq::Queue.new("default")
      job = queue.to_a.last
      entry = Sidekiq::ScheduledSet.new.first
      out = {
        queues: Sidekiq::Queue.all.map(&:name).sort,
        size: queue.size,
        latency: queue.latency,
        order: queue.map(&:jid),
        job: [job.klass, job.display_class, job.args, job.jid, job.queue, job.tags, job["custom"],
              job["retry"], job.latency],
        created: [job.created_at.to_f, job.enqueued_at.to_f],
        entry: [entry.klass, entry.args, entry.jid, entry.queue, entry["at"], entry["enqueued_at"]],
        at: entry.at.to_f,
        foreign: Sidekiq::Queue.new("ruby").first.klass,
        stats: [Sidekiq::Stats.new.enqueued, Sidekiq::Stats.new.scheduled_size],
      }
    """)
    assert seen["queues"] == ["default", "ruby"]
    assert seen["size"] == 3
    assert 0 <= seen["latency"] < 60
    assert seen["order"] == [bulk[1], bulk[0], first]
    assert seen["job"][:8] == [
        "HardJob", "HardJob", [1, "é", None, {"k": []}], first, "default", ["t"], {"x": 1}, True
    ]  # fmt: skip
    assert 0 <= seen["job"][8] < 60
    assert all(abs(stamp - time.time()) < 60 for stamp in seen["created"])
    assert seen["entry"] == ["HardJob", ["later"], later, "low", None, None]
    assert seen["at"] == pytest.approx(time.time() + 3600, abs=60)
    assert seen["foreign"] == "Some::RubyJob"
    assert seen["stats"] == [4, 1]


def test_sidekiqs_api_deletes_and_reschedules_what_forkq_wrote(
    ruby: Ruby, jobs: dict[str, Any], redis: Redis
) -> None:
    jobs["hard"].perform_in(3600, "now")
    doomed = jobs["hard"].perform_async("doomed")
    ruby(f"""
      Sidekiq::ScheduledSet.new.each(&:add_to_queue)
      Sidekiq::Queue.new("default").find_job("{doomed}").delete
    """)
    [left] = redis.lrange("queue:default", 0, -1)
    assert json.loads(left)["args"] == ["now"]
    assert redis.exists("schedule") == 0


def test_a_busy_child_is_listed_with_its_work_and_counts(
    ruby: Ruby, redis: Redis, redis_server: Server
) -> None:
    payload = b'{"class":"HardJob","args":["busy"],"jid":"b1","queue":"default","created_at":1.5}'
    unit = UnitOfWork(1, "default", 1, payload)
    unit.start(140_000_000_000_000, time.time())
    unit.progress = Progress(3, 10, "é", time.time())
    capsule = Capsule("default", (("default", 2), ("low", 1)), 4)
    config = load(None, {"tag": "mytag"}, {}, Path("/"))
    orders: list[str] = []
    log = RecordedLog()
    connection = RedisConnection(redis_server.url)
    record, round_trip = (
        Record(IDENTITY, Keys(), describe(IDENTITY, config, capsule)),
        RoundTrip(log),
    )
    heart = Heartbeat(
        connection,
        [
            WriteRecord(record, round_trip, ()),
            TakeOrder(record, round_trip, orders.append),
            FlushStats(StatsFlusher(IDENTITY, Keys(), log)),
        ],
        Outage(log),
        Outage(log),
        log,
        snapshot=lambda: Snapshot([unit], Totals(7, 2), quiet=False),
    )
    assert heart.beat()
    seen = ruby("""
      process = Sidekiq::ProcessSet.new.first
      id, thread, work = Sidekiq::WorkSet.new.to_a.first
      stats = Sidekiq::Stats.new
      history = Sidekiq::Stats::History.new(2)
      out = {
        process: [process.identity, process["busy"], process["concurrency"], process["queues"],
                  process.tag, process["weights"], process["labels"], process["quiet"]],
        alive: [process["rss"] > 1000, Time.now.to_f - process["beat"].to_f < 60],
        work: [id, thread =~ /\\A[0-9a-z]+\\z/, work["queue"], work["payload"]],
        since: Time.now.to_i - work["run_at"].to_i,
        stats: [stats.processed, stats.failed, stats.workers_size],
        history: [history.processed.values, history.failed.values],
        set: [Sidekiq::ProcessSet.new.size, process.stopping?, process["pid"].class.to_s,
              Time.now.to_i - process["started_at"].to_i, process["hostname"].empty?],
      }
      process.quiet!
    """)
    assert seen["process"] == [
        IDENTITY, 1, 4, ["default", "low"], "mytag", [{"default": 2, "low": 1}], [], "false"
    ]  # fmt: skip
    assert seen["alive"] == [True, True]
    assert seen["work"] == [IDENTITY, 0, "default", msgspec.json.decode(payload)]
    assert 0 <= seen["since"] < 60
    assert seen["stats"] == [7, 2, 1]
    assert seen["history"] == [[7, 0], [2, 0]]
    assert seen["set"][:3] == [1, False, "Integer"]
    assert 0 <= seen["set"][3] < 60
    assert not seen["set"][4]
    assert heart.beat()
    connection.close()
    assert log.lines == []
    assert orders == ["TSTP"]
    assert redis.get("stat:processed") == b"7"  # counted once, however often it beats


# forkq pushes, a real Sidekiq runs


def test_a_real_sidekiq_runs_what_forkq_pushes_and_either_takes_up_the_others_retries(
    jobs: dict[str, Any], ruby: Ruby, redis: Redis, redis_server: Server, tmp_path: Path
) -> None:
    bad = jobs["bad"].set(retry=5).perform_async("bad")
    jobs["hard"].perform_async(1, "é", 10**30)
    jobs["hard"].perform_bulk([("bulk 1",), ("bulk 2",)])
    jobs["hard"].set(queue="low").perform_async("low")
    jobs["hard"].perform_in(3600, "later")
    with sidekiq(redis_server, tmp_path):
        ran = wait_notes(redis, 5)
        wait_until(lambda: redis.zcard("retry") == 1, what="Ruby's retry entry")
        ruby("Sidekiq::ScheduledSet.new.each(&:add_to_queue)")
        ran = wait_notes(redis, 6)
    assert sorted(ran, key=repr) == sorted(
        [
            ["ruby", "BadJob", ["bad"], None],
            ["ruby", "HardJob", [1, "é", 10**30], None],
            ["ruby", "HardJob", ["bulk 1"], None],
            ["ruby", "HardJob", ["bulk 2"], None],
            ["ruby", "HardJob", ["low"], None],
            ["ruby", "HardJob", ["later"], None],
        ],
        key=repr,
    )
    # What Ruby failed at, forkq's clock takes up and a forkq child runs as its first retry.
    make_due(redis, "retry")
    connection = RedisConnection(redis_server.url)
    connection.connect()
    mover = DueJobMover(Keys(), connection)
    mover.load(watch=False)
    while mover.next_due() is not None:
        mover.work()
    connection.close()
    with InProcessChild(redis_server.url):
        assert wait_notes(redis, 7)[6] == ["python", "BadJob", ["bad"], 0]
        wait_until(lambda: redis.zcard("retry") == 1, what="forkq's retry entry")
    found = only(redis, "retry")
    assert (found["jid"], found["retry_count"]) == (bad, 1)
    assert (found["error_class"], found["error_message"]) == ("ValueError", "boom é")
    assert found["failed_at"] < found["retried_at"]
    # And back again: what forkq failed at, Sidekiq's own poller enqueues and Sidekiq runs.
    make_due(redis, "retry")
    ruby("require 'sidekiq/scheduled'; Sidekiq::Scheduled::Enq.new.enqueue_jobs")
    with sidekiq(redis_server, tmp_path):
        assert wait_notes(redis, 8)[7] == ["ruby", "BadJob", ["bad"], None]
        wait_until(lambda: redis.zcard("retry") == 1, what="Ruby's second retry entry")
    found = only(redis, "retry")
    assert (found["retry_count"], found["error_class"]) == (2, "ArgumentError")


def test_sidekiq_reads_every_burial_of_what_was_no_job(
    ruby: Ruby, redis: Redis, redis_server: Server
) -> None:
    """Each entry is shown, and can be retried or deleted: one that raises would hide all others."""
    odd = [b"1e400", b"[1e400]", b'"\xff"', b"/* a */ 42", b"NaN", b"-Infinity", b'["\\x"]', b"1//"]
    payloads = [*malformed(), *odd]
    redis.lpush("queue:default", *payloads)
    with InProcessChild(redis_server.url):
        wait_until(lambda: redis.zcard("dead") == len(payloads), deadline=20, what="all burials")
    shown = ruby("""
      require "sidekiq/api"
      out = Sidekiq::DeadSet.new.map do |job|
        [job.klass, job.jid, job.args.inspect[0, 20], job["error_class"]]
      end
    """)
    assert len(shown) == len(payloads)
    wrapped = [row for row in shown if row[0] == "forkq.malformed"]
    assert len(wrapped) >= 9
    assert all(len(jid) == 24 and error for _, jid, _, error in wrapped)


def test_a_dead_job_of_either_side_can_be_retried_from_sidekiqs_api(
    jobs: dict[str, Any], ruby: Ruby, redis: Redis, redis_server: Server
) -> None:
    jobs["last"].set(retry=0).perform_async("last")
    with InProcessChild(redis_server.url):
        wait_until(lambda: redis.zcard("dead") == 1, what="the burial")
    assert ruby("""
      job = Sidekiq::DeadSet.new.first
      job.retry
      out = [Sidekiq::DeadSet.new.size, Sidekiq::Queue.new("default").first.klass]
    """) == [0, "LastJob"]  # fmt: skip
    with InProcessChild(redis_server.url):
        wait_until(lambda: redis.zcard("dead") == 1, what="the second burial")
    assert only(redis, "dead")["retry_count"] >= 0


def test_sidekiqs_api_sees_what_forkqs_api_did(
    ruby: Ruby, jobs: dict[str, Any], redis: Redis
) -> None:
    ruby("""
      %w[retry kill edit move delete].each { |what| HardJob.perform_in(3600, what) }
      set = Sidekiq::ScheduledSet.new
      set.each { |e| Sidekiq::DeadSet.new.kill(e.value) if e.args == ["retry"] }
      set.each { |e| e.delete if e.args == ["retry"] }
      HardJob.perform_async("queued")
    """)
    [dead] = api.DeadSet()
    assert (dead.name, dead.retry()) == ("HardJob", True)
    acts: dict[str, Callable[[api.JobEntry], Any]] = {
        "kill": lambda entry: entry.kill(),
        "edit": lambda entry: entry.edit(args=["edited", 1]),
        "move": lambda entry: entry.move("low"),
        "delete": lambda entry: entry.delete(),
    }
    for entry in list(api.ScheduledSet()):
        assert acts[entry.args[0]](entry)
    seen = ruby("""
      out = {
        queue: Sidekiq::Queue.new("default").map(&:args),
        dead: Sidekiq::DeadSet.new.map(&:args),
        scheduled: Sidekiq::ScheduledSet.new.map { |e| [e.args, e.queue, e.at.to_f] },
      }
    """)
    assert seen["queue"] == [["retry"], ["queued"]]
    assert seen["dead"] == [["kill"]]
    assert sorted(entry[:2] for entry in seen["scheduled"]) == [
        [["edited", 1], "default"],
        [["move"], "low"],
    ]
    assert all(entry[2] == pytest.approx(time.time() + 3600, abs=60) for entry in seen["scheduled"])
    assert api.Queue("default").clear() == 2
    assert ruby("out = Sidekiq::Queue.all.map(&:name)") == []
