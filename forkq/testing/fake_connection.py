"""What a test without Redis has in the place of a connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn, Protocol

from ..store.scripts import (
    BATCH_CHANGE,
    CANCEL,
    FLOW_CHANGE,
    FLOW_GRAFT,
    FLOW_PUSH,
    SIGNAL_SEND,
    Script,
)
from ..wire.keys import Keys
from ..wire.times import now
from .flows import FakeFlows
from .recorded_job import RecordedJob
from .results import RecordedResults

_UNIQUE: Final = Keys().unique("")
_LATELY: Final = Keys().cancelled_lately
_CANCELLED: Final = Keys().cancelled
_RESULT: Final = Keys().result("")


class Cancels(Protocol):
    """What has the jobs of a test, and those that were ``cancelled``."""

    cancelled: list[RecordedJob]
    results: RecordedResults
    flows: FakeFlows

    def cancel(self, field: str) -> None: ...

    def holder(self, digest: str) -> str: ...

    def signal(self, arguments: Sequence[Any]) -> int: ...

    def change_batch(self, keys: Sequence[str], arguments: Sequence[Any]) -> bytes: ...


class FakeConnection:
    """Answers what cancelling a job, making a batch and sending a signal ask, from the ``jobs`` of
    a test. Raises AssertionError for all else."""

    def __init__(self, jobs: Cancels) -> None:
        self._jobs = jobs

    def script(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Cancels jobs, makes and changes batches and flows, and sends signals."""
        if script is FLOW_PUSH:
            return self._jobs.flows.push(keys, arguments)
        if script is FLOW_GRAFT:
            return self._jobs.flows.graft(keys, arguments)
        if script is FLOW_CHANGE:
            return self._jobs.flows.cancel(keys)
        if script is BATCH_CHANGE:
            return self._jobs.change_batch(keys, arguments)
        if script is SIGNAL_SEND:
            return self._jobs.signal(arguments)
        if script is not CANCEL:
            _refuse()
        for field in arguments[2::2]:
            self._jobs.cancel(field)
        return 1

    def pipeline(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The replies to the commands that ask what is cancelled, and who has a lock."""
        return [self._reply(*command) for command in commands]

    def call(self, *command: Any) -> Any:
        """The reply to one command."""
        return self._reply(*command)

    def _reply(self, command: str, key: str = "", *more: Any) -> Any:
        if command == "HMGET" and key.endswith(_CANCELLED):
            return [None] * len(more)  # what is cancelled has ended at once
        if command == "ZMSCORE" and key.endswith(_LATELY):
            ended = {job.jid for job in self._jobs.cancelled}
            return [now() if jid in ended else None for jid in more]
        if command == "SET" and _RESULT in key:
            return self._jobs.results.await_key(key, more[0])
        if command == "HGET" and key.endswith(":steps"):
            return self._jobs.flows.field(key, str(more[0]))
        if command == "BITFIELD" and key.endswith(":ends"):
            return [self._jobs.flows.state(key, int(more[-1].removeprefix("#")))]
        if command == "HMGET" and _UNIQUE in key:
            return [None, None, self._jobs.holder(key.rpartition(_UNIQUE)[2]).encode() or None]
        return _refuse()


def _refuse() -> NoReturn:
    raise AssertionError(
        "this test records pushes (forkq.testing), so there is no Redis to look into or to "
        "change; ask for the fixture `forkq_server`, a Redis for tests"
    )
