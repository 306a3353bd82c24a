"""What one call of fetch.lua costs the server, beside another version of the script.

FORKQ_BENCH_FETCH names a file with the text of the other version. It gets the same KEYS and ARGV.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis import Redis

from forkq.store.scripts import FETCH
from forkq.wire.keys import Keys
from tests.bench.load import PAYLOAD
from tests.support.server import Server

pytestmark = pytest.mark.bench

OTHER = os.environ.get("FORKQ_BENCH_FETCH")
ROUNDS = 20
CALLS = 200  # of each version in a round
OWNER = "vm:1:aaaaaaaaaaaa/"
KEYS = Keys()

Argument = int | str | bytes

# The arguments after those about acknowledgements: groups, rules and held jobs, as in fetch.lua.
IN_ORDER: Sequence[Argument] = ()
WEIGHTED = (3, 1, 5, 0, 1, 3, 0, 1, 2, 0)
LIMIT = (1, 1, 100_000, "", "", "", "", 0)
RATE = (1, 1, "", "", 900_000_000, 1, 900_000_000, 0)


@dataclass(frozen=True)
class Load:
    """Calls that take `want` jobs each, all from the last queue, and acknowledge those before."""

    name: str
    want: int
    queues: int
    rest: Sequence[Argument] = IN_ORDER
    seed: int = 0
    acknowledges: bool = True
    has_jobs: bool = True

    def keys(self, version: int) -> list[str]:
        """A version's own queues: lists and in-flight hashes in turn."""
        names = [f"{version}{number}" for number in range(self.queues)]
        return [key for name in names for key in (f"queue:{name}", f"{{queue:{name}}}:inflight")]

    def more_keys(self, version: int) -> list[str]:
        """The mark of the last queue, if it is acknowledged in, and the keys of queue 1, if it has
        rules."""
        first, last = f"{version}0", f"{version}{self.queues - 1}"
        rules = KEYS.of_rules(first) if len(self.rest) > 8 and self.rest != WEIGHTED else ()
        return [*([KEYS.awaited(last)] if self.acknowledges else []), *rules]

    def call(self, sha: str, version: int, number: int) -> list[Argument]:
        """The command of so many a call of the round."""
        first = 1 + number * self.want
        keys = [*self.keys(version), *self.more_keys(version)]
        done = [1, self.queues, self.want, *range(first - self.want, first)]
        head = ["EVALSHA", sha, 2 + len(keys), "paused", "forkq:controlled", *keys]
        count = self.queues
        arguments = [self.want, OWNER, first, self.seed, count, self.want, count]
        return [*head, *arguments, *(done if self.acknowledges else [0]), *self.rest]


@pytest.fixture
def client() -> Iterator[Redis]:
    """On a server of its own, which notes how long each command took."""
    server = Server().start()
    client = server.client()
    client.config_set("slowlog-log-slower-than", 0)
    client.config_set("slowlog-max-len", 10 * CALLS)
    yield client
    server.close()


@pytest.mark.parametrize(
    "load",
    [
        Load("8 jobs, in order", 8, 1),
        Load("8 jobs, nothing to acknowledge", 8, 1, acknowledges=False),
        Load("1 job, in order", 1, 1),
        Load("25 jobs, in order", 25, 1),
        Load("100 jobs, in order", 100, 1),
        Load("8 jobs of 3 queues", 8, 3),
        Load("8 jobs of 3 queues by weight", 8, 3, WEIGHTED, seed=1),
        Load("8 jobs with a limit", 8, 1, (0, *LIMIT)),
        Load("8 jobs with a rate", 8, 1, (0, *RATE)),
        Load("8 jobs of 200 queues", 8, 200, (1, 200, 1, 0)),
        Load("8 jobs of 200 queues in turn", 8, 200, (1, 200, 1, 1)),
        Load("8 jobs of 200 queues with a limit", 8, 200, (1, 200, 1, 0, *LIMIT)),
        Load("no job, in order", 8, 1, has_jobs=False),
        Load("no job, with a limit", 8, 1, (0, *LIMIT), has_jobs=False),
    ],
    ids=lambda load: load.name,
)
def test_a_call(client: Redis, load: Load) -> None:
    """Prints microseconds per call in the server, and the ratio of the two versions.

    The versions alternate call by call, each on queues of its own. The slower half of the calls
    does not count: other programs on this machine interrupted many of them.
    """
    texts = [FETCH.text, Path(OTHER).read_bytes()] if OTHER else [FETCH.text]
    shas: list[str] = [client.script_load(text) for text in texts]
    costs: dict[str, list[int]] = {sha: [] for sha in shas}
    for _ in range(ROUNDS):
        _run(client, load, shas)
        for entry in client.slowlog_get(10 * CALLS):
            command: list[bytes] = entry["command"].split(b" ", 2)
            if command[0] == b"EVALSHA":
                costs[command[1].decode()].append(entry["duration"])
    quick = [statistics.mean(sorted(costs[sha])[: len(costs[sha]) // 2]) for sha in shas]
    told = " and ".join(f"{cost:.2f} us" for cost in quick)
    print(f"\n{load.name}: {told}; ratio {quick[0] / quick[-1]:.3f}")


def _run(client: Redis, load: Load, shas: Sequence[str]) -> None:
    """One round, whose calls are then in the slow log."""
    client.flushall()
    if load.has_jobs:
        for version in range(len(shas)):
            jobs = [PAYLOAD] * load.want * CALLS
            client.lpush(load.keys(version)[-2], *jobs)
    versions = list(enumerate(shas))
    pipeline = client.pipeline(transaction=False)
    for number in range(CALLS):
        for version, sha in versions[:: -1 if number % 2 else 1]:
            pipeline.execute_command(*load.call(sha, version, number))  # type: ignore[no-untyped-call]
    client.slowlog_reset()
    for reply in pipeline.execute():
        assert reply.count(PAYLOAD) == (load.want if load.has_jobs else 0)
