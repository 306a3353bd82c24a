"""One visit of a page: what it asked for, who asked, and how pages are rendered for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request

from .. import api
from ..screens.facts import Observer
from ..screens.problems import MOST, Problem
from ..screens.shards import Shards
from .forms import Form
from .settings import WebSettings
from .shards import path_to
from .worker import Worker

_MOST_QUEUES: Final = 200


class View(msgspec.Struct, frozen=True):
    """What a page function returns: a template and its values. The template's block ``live`` is
    what is sent again while the page is looked at."""

    template: str
    values: Mapping[str, Any] = msgspec.field(default_factory=dict)
    status: int = 200


class Visit(msgspec.Struct, frozen=True):
    """One visit, which each page function gets. ``form`` has the fields of a POST."""

    request: Request
    form: Form

    @property
    def settings(self) -> WebSettings:
        settings: WebSettings = self.request.app.state.settings
        return settings

    @property
    def observer(self) -> Observer:
        observer: Observer = self.request.app.state.observers[self.shard]
        return observer

    @property
    def worker(self) -> Worker:
        """The threads in which the page is made: each shard has some of its own, so that one that
        hangs holds up no other."""
        worker: Worker = self.request.app.state.workers[self.shard]
        return worker

    @property
    def shard(self) -> str:
        """The shard that the page is about; "" if there are no shards."""
        return str(self.request.scope.get("forkq.shard", ""))

    @property
    def server(self) -> api.Server:
        """The Redis that the page is about."""
        return api.server(self.shard)

    @property
    def shards(self) -> list[str]:
        """The names of the shards that this UI shows, the first one of the configuration first."""
        return list(self.request.scope.get("forkq.shards", ()))

    def problems(self, most: int = MOST) -> list[Problem]:
        """The worst problems of this shard, and the urgent ones of the others. Raises
        ServerUnavailable."""
        shards: Shards = self.request.app.state.shards
        return shards.problems(self.shard, self.shards, most)

    @property
    def queues(self) -> list[str]:
        """The names of queues that a field offers."""
        return [state.name for state in self.observer.facts().states[:_MOST_QUEUES]]

    @property
    def user(self) -> str:
        """What the authentication gave, which ``authorize`` gets as it is: a name, or a subclass of
        ``str``. "" on the loopback without an authentication."""
        user: str = self.request.scope.get("forkq.user", "")
        return user

    @property
    def nonce(self) -> str:
        return str(self.request.scope["forkq.nonce"])

    @property
    def csrf(self) -> str:
        """The token that each form must repeat."""
        return str(self.request.scope["forkq.csrf"])

    def query(self, name: str, default: str = "") -> str:
        """A parameter of the URL."""
        return self.request.query_params.get(name, default)

    def number(self, name: str, default: int, most: int) -> int:
        """A parameter of the URL as a number from 0 to ``most``."""
        text = self.query(name)
        return min(int(text[:18]), most) if text.isascii() and text.isdigit() else default

    def url(self, path: str, **query: object) -> str:
        """The link to a page of this UI, wherever it is mounted. A parameter that is None or ""
        is left out."""
        root = str(self.request.scope.get("root_path", "")).rstrip("/")
        return f"{root}{self.path_of(path, **query)}"

    def url_on(self, shard: str, path: str, **query: object) -> str:
        """The link to a page of this UI, on that shard; "" is the shard of this page."""
        if not shard:
            return self.url(path, **query)
        root = str(self.request.scope.get("root_path", "")).rstrip("/")
        below = path_to(shard) if shard != self.shards[0] else ""
        return f"{root.removesuffix(path_to(self.shard))}{below}{self.path_of(path, **query)}"

    def path_of(self, path: str, **query: object) -> str:
        """The path of a page for this UI itself: without the path of the mount."""
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{path}{'?' + urlencode(given) if given else ''}"

    def here(self, **query: object) -> str:
        """The link to this page with some parameters changed."""
        return self.url(self.path, **{**self.request.query_params, **query})

    @property
    def page_on_each(self) -> str:
        """The page to which the choice of another shard leads: this one, if each shard has it."""
        known = {item.path for item in self.request.app.state.navigation}
        return self.path if self.path in known else "/"

    @property
    def path(self) -> str:
        """The path of this page without that of the mount."""
        root = str(self.request.scope.get("root_path", "")).rstrip("/")
        return self.request.url.path.removeprefix(root)

    def may(self, action: str) -> bool:
        """Whether the user may do that action."""
        settings = self.settings
        if settings.read_only:
            return False
        return settings.authorize is None or settings.authorize(self.user, action)
