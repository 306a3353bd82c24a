"""Jobs as plain Python objects: what tests patch, what `help` and `inspect` and Sphinx read."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
from typing import Any
from unittest import mock

import pytest

import forkq
from forkq import registry


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})


def make_class() -> type[Any]:
    class Thumbnail(forkq.Job, name="Thumbnail", queue="images"):
        """Makes a small picture."""

        def perform(self, path: str, width: int) -> str:
            return f"{self.jid} {self.queue} {self.retry_count} {path} {width}"

    return Thumbnail


def make_function() -> Any:
    @forkq.job(name="welcome")
    def welcome(user_id: int) -> int:
        """Says hello."""
        return user_id

    return welcome


@forkq.job(name="of the module")
def of_module() -> int:
    return 7


def test_a_job_is_pickled_by_its_name_as_a_function_is() -> None:
    """So a pool of processes may call it."""
    assert pickle.loads(pickle.dumps(of_module)) is of_module  # noqa: S301 - our own
    assert copy.deepcopy(of_module) is of_module


def make_instance() -> Any:
    return make_class()()


def base() -> Any:
    return forkq.Job


@pytest.fixture(params=[base, make_class, make_instance, make_function])
def thing(request: pytest.FixtureRequest, own_registry: None) -> Any:
    return request.param()


def test_help_and_inspect_read_it(thing: Any) -> None:
    assert pydoc.render_doc(thing, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    assert dict(inspect.getmembers(thing))["__doc__"]


def test_a_missing_attribute_is_an_attribute_error(thing: Any) -> None:
    assert not hasattr(thing, "no_such_name")
    with pytest.raises(AttributeError):
        _ = thing.no_such_name


def test_a_base_has_nothing_to_push_and_an_instance_of_no_child_no_job(own_registry: None) -> None:
    assert not hasattr(forkq.Job, "perform_async")
    assert not hasattr(make_class()(), "job")
    with pytest.raises(forkq.ForkqError, match=r"self\.job is only set while a child runs"):
        _ = make_class()().job


def test_a_job_performs_outside_of_a_child(own_registry: None) -> None:
    assert make_class()().perform("a.png", 200) == "None None None a.png 200"


def test_a_function_job_has_the_name_and_the_text_of_its_function(own_registry: None) -> None:
    welcome = make_function()
    assert (welcome.__name__, welcome.__doc__) == ("welcome", "Says hello.")
    assert welcome.__module__ == __name__
    assert list(inspect.signature(welcome).parameters) == ["user_id"]
    text = pydoc.render_doc(welcome, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    # Python 3.14 writes the annotations without quotation marks.
    assert "welcome(user_id: int) -> int\n    Says hello." in text.replace("'", "")
    assert inspect.isroutine(welcome), "else Sphinx leaves it out"


@pytest.mark.parametrize("make", [make_class, make_function])
@pytest.mark.parametrize("autospec", [False, True])
def test_perform_async_can_be_patched(make: Any, autospec: bool, own_registry: None) -> None:
    job = make()
    with mock.patch.object(job, "perform_async", autospec=autospec) as pushed:
        job.perform_async(7)
    pushed.assert_called_once_with(7)
    assert not isinstance(job.perform_async, mock.NonCallableMock)
