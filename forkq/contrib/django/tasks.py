"""The backend with which the tasks of Django (``django.tasks``, Django 6) run in forkq.

Each task is a job of forkq, by the full name of its function. What became of it is a record in
Redis (task_store.py) that expires.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import django
from django.core.exceptions import ImproperlyConfigured

try:
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskResult
    from django.tasks.exceptions import InvalidTaskBackend, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued
    from django.utils.json import normalize_json
except ModuleNotFoundError:
    raise ImproperlyConfigured(
        f"the backend of Django's tasks needs Django 6 or later; this is {django.get_version()}"
    ) from None

from ...client import transactions
from ...default_client import default
from ...errors import Duplicate, InvalidJob
from ...wire.payload import new_jid
from ...wire.validation import check_args, with_options
from . import task_run
from .task_options import check_names, options_of, signature_of
from .task_options import job_options as job_options  # noqa: PLC0414 - for apps
from .task_store import TaskStore

_DAY: Final = 86400
_OWN: Final = "result_ttl"


class ForkqBackend(BaseTaskBackend):
    """``OPTIONS`` may have the options of a job (``retry``, ``timeout``, ...), and ``result_ttl``:
    the seconds for which a result is kept; 0 keeps none."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        options = dict(self.options)
        ttl = options.pop(_OWN, _DAY)
        if type(ttl) is not int or ttl < 0:
            raise InvalidTaskBackend(f"TASKS[{alias!r}]: {_OWN} is a whole number of seconds")
        self._job = _checked(alias, options)
        self.supports_get_result = ttl > 0
        self.store = TaskStore(ttl)

    def validate_task(self, task: Task[Any, Any]) -> None:
        """Checks and registers a task: Django calls this when the task is defined, and from then on
        a child runs it."""
        super().validate_task(task)
        task_run.register(task)

    def enqueue(
        self, task: Task[Any, Any], args: list[Any], kwargs: dict[str, Any]
    ) -> TaskResult[Any, Any]:
        """Pushes the task, at once or when the transaction is committed (FORKQ_ON_COMMIT)."""
        self.validate_task(task)
        _check_call(task, args, kwargs)
        result = task_run.new_result(task, new_jid(), args, kwargs)
        self.store.check(result)
        job = {**options_of(task, self._job), **_payload(result)}
        _when_committed(lambda: self.store.save(result))  # before a child can begin it
        try:
            jid = default().push(job)
        except Duplicate:
            self.store.forget(result.id)
            raise
        if jid is not None and jid != result.id:
            return self._left_out(result, jid)
        task_enqueued.send(type(self), task_result=result)
        return result

    def _left_out(self, result: TaskResult[Any, Any], holder: str) -> TaskResult[Any, Any]:
        """The result of a task that was not pushed: that of the job that has its lock; one that has
        failed if it was throttled."""
        if not holder:
            return task_run.leave_out(result, self, holder)
        self.store.forget(result.id)
        found = self.store.read(holder, result.task, self.alias)
        return found or task_run.new_result(result.task, holder, result.args, result.kwargs)

    def get_result(self, result_id: str) -> TaskResult[Any, Any]:
        """The task as its last attempt has left it. Raises TaskResultDoesNotExist."""
        if not self.supports_get_result:
            return super().get_result(result_id)
        found = self.store.find(str(result_id))
        task = None if found is None else task_run.find(found.task)
        if found is None or task is None:
            raise TaskResultDoesNotExist(result_id)
        return found.result(task, self.alias)


class InvalidTaskCall(InvalidJob, TypeError):
    """The arguments do not fit the task, or JSON cannot carry them: TypeError to Django."""


def _check_call(task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises InvalidTaskCall, as a push of forkq's own raises InvalidJob."""
    signature = signature_of(task)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidTaskCall(f"task {task.module_path!r} takes {signature}: {error}") from None
    try:
        normalize_json([list(args), dict(kwargs)])
    except TypeError:
        _refuse_values(task.module_path, args, kwargs)
        raise


def _refuse_values(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises InvalidTaskCall, which says what to pass instead."""
    for values in (list(args), list(kwargs.values())):
        try:
            check_args({"class": name, "args": values}, "raise")
        except InvalidJob as error:
            raise InvalidTaskCall(str(error)) from None


def _payload(result: TaskResult[Any, Any]) -> dict[str, Any]:
    task = result.task
    when = {} if task.run_after is None else {"at": task.run_after.timestamp()}
    return {
        "class": task.module_path,
        "args": [result.args, result.kwargs],
        "queue": task.queue_name,
        "jid": result.id,
        "backend": result.backend,
        **when,
    }


def _when_committed(call: Callable[[], None]) -> None:
    if transactions.all_wait and transactions.on_commit is not None:
        transactions.on_commit(call)
    else:
        call()


def _checked(alias: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options for each payload. Raises InvalidTaskBackend."""
    place = f"TASKS[{alias!r}]['OPTIONS']"
    try:
        check_names(options, place, _OWN)
    except InvalidJob as error:
        raise InvalidTaskBackend(str(error)) from None
    try:
        return with_options({}, options, alias)
    except InvalidJob as error:
        raise InvalidTaskBackend(f"{place}: {error}") from None
