"""How a child runs a task of Django's: as a job that is named after the task's function."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from traceback import format_exception
from typing import Any, Protocol, cast

from django.tasks import task_backends
from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
from django.tasks.signals import task_finished, task_started
from django.utils import timezone
from django.utils.json import normalize_json

from ... import registry
from ...current_job import CurrentJob
from ...errors import Duplicate, Shutdown
from ...job import place_of_function
from .task_store import TaskStore


class Backend(Protocol):
    """The part of ForkqBackend (tasks.py) that is used here."""

    alias: str
    store: TaskStore


_tasks: dict[str, Task[Any, Any]] = {}


def register(task: Task[Any, Any]) -> None:
    """Makes children run this task from now on. Only registered tasks run: no name is imported."""
    name, known = task.module_path, _tasks.get(task.module_path)
    if known is None or known.func is not task.func:
        place = place_of_function(task.func)
        registry.add(registry.JobSpec(name, _runner(task), where=name, arity=(2, 2), place=place))
        _tasks[name] = task
    if fail not in registry.death_handlers:
        registry.on_death(fail)
        registry.on_duplicate(note_duplicate)


def find(name: str) -> Task[Any, Any] | None:
    """The task that this process has defined under ``name``."""
    return _tasks.get(name)


def new_result(
    task: Task[Any, Any], jid: str, args: list[Any], kwargs: dict[str, Any]
) -> TaskResult[Any, Any]:
    """The result of a task that waits. Raises TypeError for arguments that JSON does not know."""
    return TaskResult(
        task=task,
        id=jid,
        status=TaskResultStatus("READY"),
        enqueued_at=timezone.now(),
        args=args,
        kwargs=kwargs,
        backend=task.backend,
        errors=[],
        worker_ids=[],
        **dict.fromkeys(("started_at", "finished_at", "last_attempted_at")),
    )


def fail(job: dict[str, Any], error: BaseException) -> None:
    """Death handler: forkq has given the task up."""
    task = _tasks.get(str(job.get("class")))
    if task is None:
        return
    backend = _backend_of(task, job)
    result = _result_of(task, job, backend)
    if not result.errors or result.status != TaskResultStatus.READY:  # it ended outside of the task
        result.errors.append(_described(error))
    try:
        raise error
    except BaseException:  # noqa: BLE001 - receivers, Django's log too, ask sys.exc_info()
        _end(result, backend, status=TaskResultStatus.FAILED)


def note_duplicate(job: dict[str, Any], holder: str) -> None:
    """Duplicate handler: a task that has waited for a commit was not pushed."""
    task = _tasks.get(str(job.get("class")))
    if task is not None:
        backend = _backend_of(task, job)
        leave_out(_result_of(task, job, backend), backend, holder)


def leave_out(result: TaskResult[Any, Any], backend: Backend, holder: str) -> TaskResult[Any, Any]:
    """The result of a task that was not pushed: the job ``holder`` has its lock, or it was
    throttled."""
    why = f"job {holder} has the lock of its arguments" if holder else "it is throttled"
    result.errors.append(_described(Duplicate(f"the task was not enqueued: {why}", holder)))
    _set(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
    backend.store.save_if_possible(result)
    return result


def _runner(task: Task[Any, Any]) -> Callable[[CurrentJob], Callable[..., Any]]:
    def make(running: CurrentJob) -> Callable[..., Any]:
        return lambda _args, _kwargs: _run(task, running.payload)

    return make


def _run(task: Task[Any, Any], job: dict[str, Any]) -> None:
    """Runs one attempt of a task. What the task raises passes through: forkq retries it, or gives
    it up."""
    backend = _backend_of(task, job)
    result = _result_of(task, job, backend)
    _begin(result, backend)
    try:
        value = normalize_json(_call(result))
    except Shutdown:
        raise  # it goes back to its queue, and has not failed
    except BaseException as error:
        result.errors.append(_described(error))
        _set(result, status=TaskResultStatus.READY)
        backend.store.save_if_possible(result)
        raise
    _end(result, backend, status=TaskResultStatus.SUCCESSFUL, _return_value=value)


def _begin(result: TaskResult[Any, Any], backend: Backend) -> None:
    now = timezone.now()
    started = result.started_at or now
    _set(result, status=TaskResultStatus.RUNNING, started_at=started, last_attempted_at=now)
    result.worker_ids.append(f"{socket.gethostname()}:{os.getpid()}")
    backend.store.save_if_possible(result)
    task_started.send(type(backend), task_result=result)


def _end(result: TaskResult[Any, Any], backend: Backend, **values: Any) -> None:
    _set(result, finished_at=timezone.now(), **values)
    backend.store.save_if_possible(result)
    task_finished.send(type(backend), task_result=result)


def _call(result: TaskResult[Any, Any]) -> Any:
    context: list[Any] = [TaskContext(task_result=result)] if result.task.takes_context else []
    return result.task.call(*context, *result.args, **result.kwargs)


def _backend_of(task: Task[Any, Any], job: dict[str, Any]) -> Backend:
    """The backend that has enqueued the task, if the settings still have it."""
    alias = job.get("backend")
    return cast(
        "Backend", task_backends[alias if alias in task_backends.settings else task.backend]
    )


def _result_of(task: Task[Any, Any], job: dict[str, Any], backend: Backend) -> TaskResult[Any, Any]:
    """The result as the last attempt has left it; a new one if that is gone. The arguments are
    those of the payload."""
    args, kwargs = job["args"]
    result = backend.store.read(job["jid"], task, backend.alias)
    result = result or new_result(task, job["jid"], args, kwargs)
    _set(result, args=args, kwargs=kwargs)
    return result


def _described(error: BaseException) -> TaskError:
    kind = type(error)
    path = f"{kind.__module__}.{kind.__qualname__}"
    return TaskError(exception_class_path=path, traceback="".join(format_exception(error)))


def _set(result: TaskResult[Any, Any], **values: Any) -> None:
    """Sets an attribute of a TaskResult, which is frozen for those who enqueue."""
    for name, value in values.items():
        object.__setattr__(result, name, value)
