"""The programs that are compared: how each is installed and started. Apps: tests/bench/peers."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from forkq.values import replace

CHECKOUT = Path(__file__).resolve().parents[3]
APPS = CHECKOUT / "tests" / "bench" / "peers"
FORKQ = "forkq"


@dataclass(frozen=True)
class Peer:
    """A program that runs jobs.

    `packages` are installed into an environment of its own. `worker` starts it, `push` pushes:
    {bin} is the environment's folder of programs, {url}, {threads} and {folder} are filled in.
    `share` is how many of the jobs it gets: a slow one needs fewer in the same time.
    """

    name: str
    worker: str
    packages: tuple[str, ...] = ()
    push: str = "{bin}/python bench_{name}.py"
    share: float = 1.0
    env: Mapping[str, str] = field(default_factory=dict)
    settings: str = ""


def _sidekiq() -> str:
    return os.environ.get("SIDEKIQ_PATH") or shutil.which("sidekiq") or ""


_RUBY = "-C {apps} {sidekiq} -r ./bench_sidekiq.rb -c {threads} -e production"


def _ruby(name: str, *options: str) -> Peer:
    places = {"apps": str(APPS), "sidekiq": _sidekiq(), "threads": "{threads}"}
    return Peer(
        name,
        " ".join(("ruby", *options, _RUBY.format(**places))),
        push="ruby bench_sidekiq.rb",
        share=5,
        settings="defaults, `-e production`" + (", `ruby --yjit`" if options else ""),
    )


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            FORKQ,
            f"{sys.executable} {CHECKOUT}/bin/forkq start -r bench_forkq --redis {{url}}"
            " -c {threads} --log-level warning --pidfile {folder}/pid",
            push=f"{sys.executable} bench_forkq.py",
            share=10,
            settings="defaults; one child",
        ),
        _ruby("sidekiq"),
        _ruby("sidekiq-yjit", "--yjit"),
        Peer(
            "celery",
            "{bin}/celery -A bench_celery worker -P threads -c {threads} -l WARNING"
            " --without-gossip --without-mingle --without-heartbeat",
            packages=("celery[redis]", "hiredis"),
            share=0.5,
            settings="`-P threads`, prefetch multiplier 64, no results, events, gossip",
        ),
        Peer(
            "dramatiq",
            "{bin}/dramatiq bench_dramatiq --processes 1 --threads {threads}",
            packages=("dramatiq[redis]", "hiredis"),
            share=0.5,
            env={"dramatiq_queue_prefetch": "640"},
            settings="one process, `dramatiq_queue_prefetch` 640",
        ),
        Peer(
            "rq",
            "{bin}/rq worker-pool -n {threads} -u {url} -w rq.worker.SimpleWorker -q default",
            packages=("rq", "hiredis"),
            share=0.25,
            settings="SimpleWorker, a pool of processes (it has no threads), no results",
        ),
        Peer(
            "huey",
            "{bin}/huey_consumer bench_huey.huey -w {threads} -k thread -n -q",
            packages=("huey", "redis", "hiredis"),
            settings="threads, no results, no periodic jobs",
        ),
        Peer(
            "taskiq",
            "{bin}/taskiq worker bench_taskiq:broker --workers 1 --max-async-tasks {threads}"
            " --max-prefetch 100 --log-level WARNING",
            packages=("taskiq", "taskiq-redis", "hiredis"),
            share=0.5,
            settings="Redis Streams, one process, `--max-prefetch 100`, coroutines",
        ),
        Peer(
            "saq",
            "{bin}/saq bench_saq.settings --quiet",
            # SAQ 0.26.4 imports typing_extensions and does not require it.
            packages=("saq[redis,hiredis]", "typing_extensions"),
            share=0.5,
            settings="hiredis, one process, no results, coroutines",
        ),
        Peer(
            "streaq",
            "{bin}/streaq run bench_streaq:worker",
            packages=("streaq",),
            share=0.5,
            settings="one process, no results, coroutines",
        ),
        Peer(
            "ardiq",
            "{bin}/ardiq run bench_ardiq:app -q",
            packages=("ardiq",),
            settings="one process, coroutines",
        ),
    )
}


# What every environment of these has, beside its own: uvloop is used by all that look for it.
_WITH = ("httpx", "aiohttp", "uvloop")
_WORK = "{{bin}}/python bench_{}.py work"


def _coroutines(name: str, worker: str, *packages: str, settings: str) -> Peer:
    push = f"{{bin}}/python bench_{name.replace('-', '_')}.py"
    return Peer(name, worker, (*packages, *_WITH), push, settings=settings)


# The peers of the bench of coroutines. Those of Redis; and Procrastinate.
COROUTINES = {
    peer.name: peer
    for peer in (
        replace(
            _coroutines(
                f"{FORKQ}-async",
                f"{{bin}}/python {CHECKOUT}/bin/forkq start -C {APPS}/bench_forkq_async.toml"
                " -r bench_forkq_async --redis {url} -c {threads} --log-level warning"
                " --pidfile {folder}/pid",
                str(CHECKOUT),
                settings='one child, `kind = "async"`',
            ),
            env={"PYTHONPATH": f"{APPS}{os.pathsep}{CHECKOUT}"},
        ),
        _coroutines(
            "taskiq-async",
            "{bin}/taskiq worker bench_taskiq_async:broker --workers 1"
            " --max-async-tasks {threads} --max-prefetch 100 --log-level WARNING",
            "taskiq",
            "taskiq-redis",
            "hiredis",
            settings="Redis Streams, one process, `--max-prefetch 100`",
        ),
        _coroutines(
            "saq-async",
            "{bin}/saq bench_saq_async.settings --quiet",
            "saq[redis,hiredis]",
            "typing_extensions",
            settings="hiredis, one process, no results",
        ),
        _coroutines(
            "streaq-async",
            "{bin}/streaq run bench_streaq_async:worker",
            "streaq",
            settings="one process, no results",
        ),
        _coroutines(
            "docket",
            _WORK.format("docket"),
            "pydocket",
            settings="one process, `max_connections` 2000, finished jobs are not kept",
        ),
        _coroutines(
            "procrastinate",
            _WORK.format("procrastinate"),
            "procrastinate",
            "psycopg[binary,pool]",
            settings="one process, PostgreSQL without `fsync`, finished jobs are deleted",
        ),
    )
}
