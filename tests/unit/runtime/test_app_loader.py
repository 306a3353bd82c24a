"""Which failed boots would fail again."""

from __future__ import annotations

from itertools import pairwise

import pytest

from forkq.errors import CannotBoot, ConfigError, InvalidJob, WrongPassword
from forkq.runtime.app_loader import is_lasting, load_app


def raised(*chain: BaseException) -> BaseException:
    """The last of ``chain``, each raised from the one before."""
    for cause, error in pairwise(chain):
        error.__cause__ = cause
    return chain[-1]


@pytest.mark.parametrize(
    ("error", "lasting"),
    [
        (ImportError("no module"), True),
        (SyntaxError("invalid syntax"), True),
        (NameError("jobs"), True),
        (InvalidJob("no such option"), True),
        (ConfigError("a wrong URL"), True),
        (CannotBoot("no such file"), True),
        (raised(ModuleNotFoundError("x"), CannotBoot("cannot load the app")), True),
        (raised(InvalidJob("x"), CannotBoot("cannot load the app")), True),
        (ConnectionRefusedError("111"), False),
        (MemoryError(), False),
        (RuntimeError("not yet"), False),
        (SystemExit(1), False),
        (WrongPassword("Redis refuses"), False),
        (raised(ConnectionRefusedError("111"), ImportError("no driver")), False),
        (raised(ConnectionRefusedError("111"), CannotBoot("cannot load the app")), False),
        (raised(RuntimeError("no thread"), CannotBoot("no more threads")), False),
    ],
    ids=repr,
)
def test_in_doubt_a_boot_is_tried_again(error: BaseException, lasting: bool) -> None:
    assert is_lasting(error) is lasting


@pytest.mark.parametrize(
    "target", ["no_such_module", "forkq:no_such_name", "./no_such_file.py", "forkq.no_such_part"]
)
def test_an_app_that_is_not_there_is_not_awaited(target: str) -> None:
    with pytest.raises(CannotBoot) as failure:
        load_app([target])
    assert is_lasting(failure.value)


def test_an_error_that_was_raised_while_a_connection_was_refused_counts_as_that() -> None:
    """Also if the library hides that with ``from None``."""

    def connect() -> None:
        try:
            raise ConnectionRefusedError
        except OSError:
            raise ImportError("the driver gave up") from None

    with pytest.raises(ImportError) as failure:
        connect()
    assert not is_lasting(failure.value)
