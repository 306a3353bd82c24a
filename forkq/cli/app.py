"""The import of the user's app by a command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..errors import CannotBoot, ForkqError
from ..runtime.app_frames import app_traceback
from ..runtime.app_loader import load_app


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
            f"the app {', '.join(app)} failed while it was {when}:\n{app_traceback(error)}"
        ) from None


def import_app(app: Sequence[str]) -> None:
    """Imports the app into this process. Raises CannotBoot."""
    with app_errors(app, "imported"):
        load_app(app)
