"""What the benchmarks share: the load, and the programs that run it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil

from tests.support import bound
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until

APP = """
import forkq

@forkq.job(name="Noop")
def noop(*args): pass
"""

RUBY = """
require "sidekiq"
Sidekiq.configure_server do |config|
  config.redis = {url: "URL"}
  config.logger.level = Logger::LEVEL
end
class Noop
  include Sidekiq::Worker
  def perform(*args); end
end
"""

PAYLOAD = (
    b'{"retry":true,"queue":"default","args":[1],"class":"Noop","jid":"7ff3cf34efff6d76635f23dd",'
    b'"created_at":1795216065.6910222,"enqueued_at":1795216065.6910915}'
)


def fill(server: Server, jobs: int) -> None:
    """Puts `jobs` no-op jobs into the default queue."""
    with server.client() as client:
        client.sadd("queues", "default")
        for _ in range(jobs // 1000):
            client.lpush("queue:default", *[PAYLOAD] * 1000)


def drain(server: Server, jobs: int, left: int = 0) -> float:
    """Jobs per second over the middle nine tenths of `jobs`, while a program drains their queue
    until `left` are left."""
    with server.client() as client:
        first = _below(client, left + jobs - jobs // 20)
        last = _below(client, left + jobs // 20)
    return (first[1] - last[1]) / (last[0] - first[0])


def _below(client: object, level: int) -> tuple[float, int]:
    """When the queue was first seen at or below `level`, by the server's clock, and its length."""

    def look() -> tuple[float, int] | None:
        length = client.llen("queue:default")  # type: ignore[attr-defined]
        seconds, micros = client.time()  # type: ignore[attr-defined]
        return (seconds + micros / 1e6, length) if length <= level else None

    found = wait_until(look, deadline=120, what=f"a queue of at most {level}", every=0.005)
    assert found is not None
    return found


@contextmanager
def forkq(server: Server, *args: str, level: str = "warning") -> Iterator[psutil.Process]:
    """forkq on that server, logging to a file; yields its first child."""
    start_tree = StartTree()
    try:
        tree = start_tree(server, app=APP, args=("--log-level", level, *args))
        yield tree.children("forkq child")[0]
    finally:
        start_tree.close()


@contextmanager
def sidekiq(server: Server, threads: int, log: IO[bytes] | None = None) -> Iterator[psutil.Process]:
    """Sidekiq on that server, logging warnings, or INFO to the file ``log``; yields it."""
    level = "WARN" if log is None else "INFO"
    with tempfile.TemporaryDirectory() as folder:
        app = Path(folder) / "app.rb"
        app.write_text(RUBY.replace("URL", server.url).replace("LEVEL", level))
        command = [_sidekiq(), "-r", str(app), "-c", str(threads), "-e", "production"]
        output = subprocess.DEVNULL if log is None else log
        process = subprocess.Popen(bound.command(command), stdout=output, stderr=subprocess.DEVNULL)
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(30)


def sidekiq_version() -> str | None:
    """The version of that Sidekiq, or None."""
    if shutil.which(_sidekiq()) is None:
        return None
    found = subprocess.run([_sidekiq(), "--version"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def _sidekiq() -> str:
    """The one that SIDEKIQ_PATH names, with RUBYLIB for its libraries, or the one on PATH."""
    return os.environ.get("SIDEKIQ_PATH") or "sidekiq"
