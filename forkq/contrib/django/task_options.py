"""The options of a job for one task of Django's: ``job_options``, beside ``@task``.

Django's Task has no place for them, and ``using`` takes its own four. So they stand on the
function, and the backend reads them when the task is enqueued.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ...errors import InvalidJob, nearest, shown
from ...wire.marks import KEY, needs_in
from ...wire.options import OPTIONS
from ...wire.payload import Payload
from ...wire.validation import with_options

if TYPE_CHECKING:
    from django.tasks.base import Task
    from typing_extensions import Unpack

    from ...wire.options import JobOptions

Function = TypeVar("Function", bound=Callable[..., Any])
_ATTRIBUTE: Final = "forkq_options"
# Those whose jobs are told apart by their arguments.
_BY_ARGUMENTS: Final = ("unique_for", "debounce", "throttle")
# Options of other jobs, and where a task has them.
_ELSEWHERE: Final[Mapping[str, str]] = {
    "queue": "write `queue_name` in @task, or in `using`",
    "retry_on": "all errors are tried again; `retry=False` is for a task that must not be",
    "discard_on": "raise forkq.Discard in the task",
    "max_runtime": "it is of iterable jobs; use timeout",
}


def job_options(**options: Unpack[JobOptions]) -> Callable[[Function], Function]:
    """Decorator, below ``@task``: the options of forkq for this task, as ``unique_for`` or
    ``expires_in``. They count before those of its backend. Raises InvalidJob for a value that an
    option cannot have, and for ``queue``, which a task has as ``queue_name``."""

    def decorate(function: Function) -> Function:
        if not inspect.isfunction(function):
            raise InvalidJob(
                f"job_options stands below @task, on the function: this is {shown(function)}"
            )
        check_names(options, f"task {function.__qualname__!r}")
        with_options({}, options, function.__qualname__)
        setattr(function, _ATTRIBUTE, dict(options))
        return function

    return decorate


def check_names(options: Mapping[str, Any], place: str, *more: str) -> None:
    """Raises InvalidJob for the first key that is no option, and none of these others."""
    known = sorted({*OPTIONS, *more} - _ELSEWHERE.keys())
    for name in options:
        if name not in known:
            use = _ELSEWHERE.get(name) or f"use {nearest(name, known) or ', '.join(known)}"
            raise InvalidJob(f"{place}: there is no option {name!r}; {use}")


def options_of(task: Task[Any, Any], shared: Payload) -> Payload:
    """What the payload of this task has of its own options, and of those of its backend. Raises
    InvalidJob."""
    own = getattr(task.func, _ATTRIBUTE, {})
    made = with_options(shared, own, task.module_path)
    needs = needs_in(made.get(KEY))
    if not any(needs.get(option) for option in _BY_ARGUMENTS):
        return made
    options: dict[str, Any] = {"unique_by": _counting(task, needs.get("unique_by"))}
    if needs.get("unique_for") and needs.get("on_duplicate", "skip") == "skip":
        options["on_duplicate"] = "return"  # enqueue returns the result of the task that is there
    return with_options(made, options, task.module_path)


def signature_of(task: Task[Any, Any]) -> inspect.Signature:
    """The parameters that ``enqueue`` takes."""
    signature = inspect.signature(task.func)
    if not task.takes_context:
        return signature
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _counting(task: Task[Any, Any], by: Any) -> Callable[..., Any]:
    """What makes of the arguments of the payload what counts: those that are the same count so
    whether they are given by position, by name, or by a default. Raises InvalidJob."""
    signature = signature_of(task)
    for name in () if by is None or callable(by) else by:
        if name not in signature.parameters:
            raise InvalidJob(
                f"task {task.module_path!r}: `unique_by` names {name!r}, which is none of its "
                f"parameters ({', '.join(signature.parameters)})"
            )

    def counts(args: list[Any], kwargs: dict[str, Any]) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if callable(by):
            return by(*bound.args, **bound.kwargs)
        names = signature.parameters if by is None else by
        return [bound.arguments[name] for name in names]

    return counts
