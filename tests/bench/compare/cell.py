"""One cell of the bench: a program drains a queue for a few seconds, and its rate is taken."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.bench.compare.counts import Counts
from tests.bench.compare.environments import Found
from tests.bench.compare.peers import APPS, Peer
from tests.support import bound
from tests.support.server import Server
from tests.support.waiting import NotInTime, wait_until

START = 20.0  # seconds in which a program must have run its first jobs
Keys = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Reading:
    """What is read at one moment."""

    at: float
    jobs: int
    worker_cpu: float
    redis_cpu: float


@dataclass(frozen=True)
class Measured:
    """The rate between two readings, and what it cost: CPU time per job, in microseconds."""

    rate: float
    seconds: float
    worker_us: float
    redis_us: float
    load: float


class Failed(Exception):
    """The program ran no jobs; the message says what it printed."""


class Stage:
    """A server, a peer and its environment: what all cells of the peer share."""

    def __init__(self, server: Server, peer: Peer, found: Found, threads: int) -> None:
        self.server = server
        self.peer = peer
        self._bin = found.bin
        self._threads = threads

    def push(self, kind: str, jobs: int) -> Keys:
        """Pushes jobs in the peer's own way, and returns what then stands in Redis, to be put
        back before each cell."""
        with tempfile.TemporaryDirectory() as folder, self.server.client() as client:
            client.flushall()
            self._run_push(kind, jobs, folder)
            return [(key, client.dump(key)) for key in client.scan_iter(count=1000)]

    def printed(self, kind: str, jobs: int) -> str:
        """What the peer's program prints that pushes."""
        with tempfile.TemporaryDirectory() as folder, self.server.client() as client:
            client.flushall()
            return self._run_push(kind, jobs, folder)

    def _run_push(self, kind: str, jobs: int, folder: str) -> str:
        command = [*self._command(self.peer.push, self.server.url, folder), kind, str(jobs)]
        done = subprocess.run(
            command,
            cwd=APPS,
            env=self._env(self.server.url, ""),
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise Failed(f"the push exited with {done.returncode}: {done.stderr[-200:]!r}")
        return done.stdout.decode()

    def measure(self, keys: Keys, jobs: int, url: str, window: float) -> Measured:
        """Starts the program, waits for the first twentieth of the jobs, and takes the rate until
        the last twentieth or the end of the window."""
        with self.running(keys, url) as (process, counts):
            return self._rate(process, counts, jobs, window)

    @contextmanager
    def running(self, keys: Keys, url: str) -> Iterator[tuple[psutil.Process, Counts]]:
        """The program, started on a server that holds these keys, and the counts of its jobs."""
        with self.filled(keys) as counts, self.started(url, counts) as process:
            yield process, counts

    @contextmanager
    def filled(self, keys: Keys) -> Iterator[Counts]:
        """The counts of jobs that have not run yet, beside a server that holds these keys."""
        with tempfile.TemporaryDirectory() as folder:
            with self.server.client() as client:
                client.flushall()
                _restore(client, keys)
            counts = Counts(Path(folder) / "counts")
            try:
                yield counts
            finally:
                counts.close()

    def _rate(self, process: psutil.Process, counts: Counts, jobs: int, window: float) -> Measured:
        first = jobs // 20
        wait_until(
            lambda: has_run(process, counts, first), deadline=START, what="jobs", every=0.002
        )
        begin = self._read(process, counts)
        with contextlib.suppress(NotInTime):
            wait_until(
                lambda: counts.total() >= jobs - first, deadline=window, what="", every=0.002
            )
        return _between(begin, self._read(process, counts))

    def _read(self, process: psutil.Process, counts: Counts) -> Reading:
        redis = psutil.Process(self.server.pid)
        at, jobs = time.monotonic(), counts.total()
        return Reading(at, jobs, sum(map(_cpu, _tree(process))), _cpu(redis))

    @contextmanager
    def started(self, url: str, counts: Counts) -> Iterator[psutil.Process]:
        """The program. It is killed at the end, with all that it has started."""
        folder = counts.path.parent
        log = folder / "log"
        with log.open("wb") as output:
            started = subprocess.Popen(
                bound.command(self._command(self.peer.worker, url, str(folder))),
                cwd=APPS,
                env=self._env(url, str(counts.path)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        process = psutil.Process(started.pid)
        try:
            yield process
        except NotInTime:
            raise Failed(
                log.read_text(errors="replace").strip()[-400:] or "it printed nothing"
            ) from None
        finally:
            kill(process)
            started.wait(30)

    def _command(self, command: str, url: str, folder: str) -> list[str]:
        values = {"bin": self._bin, "name": self.peer.name, "url": url, "folder": folder}
        return [part.format(**values, threads=self._threads) for part in command.split()]

    def _env(self, url: str, counts: str) -> Mapping[str, str]:
        own = {"BENCH_URL": url, "BENCH_COUNTS": counts, "BENCH_CONCURRENCY": str(self._threads)}
        return {**os.environ, "PYTHONPATH": str(APPS), **own, **self.peer.env}


def has_run(process: psutil.Process, counts: Counts, jobs: int) -> bool:
    """Whether so many jobs have run. Raises NotInTime if the program has ended."""
    if process.status() == psutil.STATUS_ZOMBIE:
        raise NotInTime("the program has ended")
    return counts.total() >= jobs


def _restore(client: object, keys: Keys) -> None:
    pipe = client.pipeline(transaction=False)  # type: ignore[attr-defined]
    for number, (key, value) in enumerate(keys, 1):
        pipe.restore(key, 0, value)
        if number % 1000 == 0:
            pipe.execute()
    pipe.execute()


def _between(begin: Reading, end: Reading) -> Measured:
    jobs, seconds = end.jobs - begin.jobs, end.at - begin.at
    if jobs <= 0:
        raise Failed("it ran a twentieth of the jobs, and then no more")
    worker = 1e6 * (end.worker_cpu - begin.worker_cpu) / jobs
    redis = 1e6 * (end.redis_cpu - begin.redis_cpu) / jobs
    return Measured(jobs / seconds, seconds, worker, redis, os.getloadavg()[0])


def _tree(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def _cpu(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def kill(process: psutil.Process) -> None:
    """Ends the program and all that it started, at once: its figures are taken."""
    with contextlib.suppress(psutil.NoSuchProcess):
        tree = _tree(process)
        for one in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        psutil.wait_procs(tree, timeout=10)
