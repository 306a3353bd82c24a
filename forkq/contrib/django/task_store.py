"""What became of each task, in Redis: a string that expires, one for each task."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any, Final

import msgspec
from django.tasks.base import Task, TaskError, TaskResult, TaskResultStatus
from django.tasks.exceptions import InvalidTask

from ...default_client import default
from ...errors import ForkqError, InvalidJob, MalformedPayload
from ...wire.payload import bounded, dumps

_log = logging.getLogger("forkq")

_LONGEST_TRACEBACK = 20_000
_MOST_ERRORS = 10
# What a TaskResult and its record have alike.
_SAME: Final = (
    *("id", "args", "kwargs", "worker_ids"),
    *("enqueued_at", "started_at", "finished_at", "last_attempted_at"),
)


class StoredError(msgspec.Struct):
    """One failure of a task."""

    exception_class_path: str
    traceback: str


class StoredTask(msgspec.Struct):
    """A task and its state, as JSON in Redis. ``task`` is the full name of its function."""

    id: str
    task: str
    queue_name: str
    priority: int
    run_after: datetime | None
    status: str
    enqueued_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    last_attempted_at: datetime | None
    args: list[Any]
    kwargs: dict[str, Any]
    errors: list[StoredError]
    worker_ids: list[str]
    return_value: Any = None

    def result(self, task: Task[Any, Any], alias: str) -> TaskResult[Any, Any]:
        """The TaskResult of Django. ``task`` is the task as it is defined in this process."""
        result: TaskResult[Any, Any] = TaskResult(
            task=self._as_enqueued(task, alias),
            status=TaskResultStatus(self.status),
            backend=alias,
            errors=[TaskError(**msgspec.structs.asdict(error)) for error in self.errors],
            **{name: getattr(self, name) for name in _SAME},
        )
        object.__setattr__(result, "_return_value", self.return_value)
        return result

    def _as_enqueued(self, task: Task[Any, Any], alias: str) -> Task[Any, Any]:
        try:
            return task.using(
                queue_name=self.queue_name,
                priority=self.priority,
                run_after=self.run_after,
                backend=alias,
            )
        except InvalidTask:  # a queue that the settings do not name any more
            return task


_decoder = msgspec.json.Decoder(StoredTask)


class TaskStore:
    """Keeps each record for ``ttl`` seconds after its last change; none with 0."""

    def __init__(self, ttl: int) -> None:
        self._ttl = ttl

    def check(self, result: TaskResult[Any, Any]) -> None:
        """Raises InvalidJob if JSON cannot carry the arguments."""
        dumps({"class": result.task.module_path, "args": [result.args, result.kwargs]})

    def save(self, result: TaskResult[Any, Any]) -> None:
        """Writes the record. Raises ServerUnavailable."""
        if not self._ttl:
            return
        client = default()
        with client.connection() as connection:
            connection.call("SET", client.keys.task(result.id), _encoded(result), "EX", self._ttl)

    def forget(self, jid: str) -> None:
        """Deletes the record of a task that was not pushed. Raises ServerUnavailable."""
        client = default()
        with client.connection() as connection:
            connection.call("DEL", client.keys.task(jid))

    def save_if_possible(self, result: TaskResult[Any, Any]) -> None:
        """Writes the record in a child, if that is possible. A task does not fail, and run again,
        because Redis could not take its state."""
        try:
            self.save(result)
        except ForkqError as error:
            _log.warning("the state of the task %s cannot be stored: %s", result.id, error)

    def read(self, jid: str, task: Task[Any, Any], alias: str) -> TaskResult[Any, Any] | None:
        """The record for a child, if there is one and Redis can be asked."""
        try:
            found = self.find(jid) if self._ttl else None
        except ForkqError as error:
            _log.warning("the state of the task %s cannot be read: %s", jid, error)
            return None
        return None if found is None else found.result(task, alias)

    def find(self, jid: str) -> StoredTask | None:
        """The record; None if there is none, or no readable one. Raises ServerUnavailable."""
        client = default()
        with client.connection() as connection:
            found = connection.call("GET", client.keys.task(jid))
        try:
            return None if found is None else _decoder.decode(bounded(bytes(found)))
        except (msgspec.MsgspecError, MalformedPayload, RecursionError, ValueError):
            return None


def _encoded(result: TaskResult[Any, Any]) -> bytes:
    try:
        value = getattr(result, "_return_value", None)  # return_value raises until it is there
        return msgspec.json.encode(_stored(result, value))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidJob(f"the result of {result.task.module_path}: {error}") from None


def _stored(result: TaskResult[Any, Any], value: Any) -> StoredTask:
    task = result.task
    return StoredTask(
        task=task.module_path,
        queue_name=task.queue_name,
        priority=task.priority,
        run_after=task.run_after,
        status=result.status.value,
        errors=[_cut(error) for error in result.errors[-_MOST_ERRORS:]],
        return_value=value,
        **{name: getattr(result, name) for name in _SAME},
    )


def _cut(error: TaskError) -> StoredError:
    return StoredError(error.exception_class_path, error.traceback[-_LONGEST_TRACEBACK:])
