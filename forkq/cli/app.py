"""The import of the user's app by a command, and what it has registered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .. import registry
from ..config.config import Config
from ..errors import CannotBoot, ForkqError
from ..limits.patterns import matches_any
from ..runtime.app_loader import load_app
from ..wire.payload import DEFAULT_QUEUE
from ..wire.printable import traceback_of


@contextmanager
def app_errors(app: Sequence[str], when: str) -> Iterator[None]:
    """Makes what the import of ``app`` raises in its block a CannotBoot."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except ForkqError as error:
        raise CannotBoot(str(error)) from None
    except BaseException as error:  # noqa: BLE001 - SystemExit too: it would look like a clean end
        raise CannotBoot(
            f"the app {', '.join(app)} failed while it was {when}:\n{traceback_of(error)}"
        ) from None


def import_app(app: Sequence[str]) -> None:
    """Imports the app into this process. Raises CannotBoot."""
    with app_errors(app, "imported"):
        load_app(app)


def queue_of(spec: registry.JobSpec) -> str:
    """The queue that a job is pushed to if the push says nothing else."""
    return str(spec.options.get("queue", DEFAULT_QUEUE))


def unserved_jobs(config: Config) -> list[registry.JobSpec]:
    """The app's jobs whose queue no capsule of the configuration serves."""
    specs = [registry.lookup(name) for name in registry.names()]
    return [spec for spec in specs if not matches_any(queue_of(spec), config.queue_names)]
