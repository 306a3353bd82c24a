"""How spans and metrics are called: OpenTelemetry's conventions for messaging."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

NameBy: TypeAlias = Literal["queue", "class"]

SCHEMA: Final = "https://opentelemetry.io/schemas/1.27.0"


class Naming(msgspec.Struct, frozen=True):
    """The names of spans and metrics. ``system``: the value of ``messaging.system``, and part of
    the names that forkq adds."""

    system: str
    name_by: NameBy

    def span_name(self, operation: str, queue: str, job: str) -> str:
        """The name of a span, such as "process mail"."""
        return f"{operation} {queue if self.name_by == 'queue' else job}"

    def attributes(self, kind: str, queue: str, job: str) -> dict[str, Any]:
        """The attributes of each span. No argument of a job is one."""
        return {
            **self.operation(kind, queue),
            "messaging.operation.type": kind,
            f"messaging.{self.system}.job_class": job,
        }

    def operation(self, name: str, queue: str) -> dict[str, str]:
        """The attributes of each metric that OpenTelemetry's conventions name."""
        return {
            "messaging.system": self.system,
            "messaging.operation.name": name,
            "messaging.destination.name": queue,
        }


def error_type(error: BaseException) -> str:
    """The value of ``error.type``."""
    kind = type(error)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
