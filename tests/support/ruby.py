"""Ruby's Sidekiq beside forkq on one Redis: whether it is there, its process, and its web UI."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from . import bound
from .server import Server

_MISSING = "ruby has no Sidekiq 6 or later: `make test-deps`, or `gem install sidekiq`"
_NO_RACK = "ruby has no Rack, which Sidekiq's web UI needs: `make test-deps`, or `gem install rack`"
_NO_ITERABLE = "ruby's Sidekiq is older than 7.3, which has iterable jobs: `gem install sidekiq`"
# Answers the requests that come as lines of JSON, in one session, as one browser has it.
_WEB = """
answers = $stdout.dup
answers.sync = true
$stdout.reopen($stderr)
require "json"
require "rack"
require "rack/mock"
require "sidekiq"
require "sidekiq/web"
session = {}
ui = Rack::MockRequest.new(Sidekiq::Web)
$stdin.each_line do |line|
  method, path, form = JSON.parse(line)
  answer = ui.request(method, path, "rack.session" => session, "HTTP_HOST" => "localhost",
                      "HTTP_SEC_FETCH_SITE" => "same-origin", params: form)
  body = answer.body.dup.force_encoding("UTF-8")
  answers.puts JSON.dump([answer.status, answer["Location"], body])
end
"""
_FORM = re.compile(r"<form.*?</form>", re.DOTALL)
_HIDDEN = re.compile(r"<input[^>]*type=['\"]hidden[^>]*>")
_NO_TEXT = re.compile(r"<(script|style).*?</\1>|<[^>]*>", re.DOTALL)
_ATTRIBUTE = r'\b{}\s*=\s*[\'"]([^\'"]*)'


def obstacle() -> str | None:
    """Why Sidekiq cannot be run here, or None."""
    if shutil.which("ruby") is None:
        return "no ruby on PATH: `make test-deps`, or install ruby and its gem sidekiq"
    return None if _runs("require 'sidekiq'; exit Sidekiq::VERSION >= '6.0'") else _MISSING


def web_obstacle() -> str | None:
    """Why its web UI cannot be run here, or None."""
    return obstacle() or (None if _runs("require 'rack'") else _NO_RACK)


def iterable_obstacle() -> str | None:
    """Why a Sidekiq with iterable jobs cannot be run here, or None."""
    return obstacle() or (None if _runs("require 'sidekiq/job/iterable'") else _NO_ITERABLE)


@cache
def _runs(program: str) -> bool:
    done = subprocess.run(["ruby", "-e", program], capture_output=True, check=False)
    return done.returncode == 0


@contextmanager
def sidekiq(
    server: Server, folder: Path, jobs: str, queues: tuple[str, ...] = ("default", "low")
) -> Iterator[subprocess.Popen[bytes]]:
    """A real `sidekiq` process with these jobs, surely gone afterwards."""
    (folder / "jobs.rb").write_text(jobs)
    named = [word for queue in queues for word in ("-q", queue)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            bound.command(["sidekiq", "-r", "./jobs.rb", "-c", "2", "-t", "2", *named]),
            cwd=folder,
            env={**os.environ, "REDIS_URL": server.url},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
            raise


class Page(NamedTuple):
    """One answer of Sidekiq's web UI."""

    status: int
    location: str | None
    body: str

    @property
    def text(self) -> str:
        """What a reader sees, on one line."""
        return " ".join(html.unescape(_NO_TEXT.sub(" ", self.body)).split())

    def form(self, button: str, *, of: str = "") -> tuple[str, dict[str, str]]:
        """The first form with a button of this name: where it leads, and its hidden fields. ``of``
        stands in the form too."""
        forms = [text for text in _FORM.findall(self.body) if _has(text, button) and of in text]
        assert forms, f"no form with {button!r} and {of!r} in {self.body}"
        # Sidekiq 8 has one form with several buttons that lead to other addresses.
        other = re.search(rf'formaction="([^"]*{re.escape(of)})"', forms[0]) if of else None
        action = other[1] if other else _attribute(forms[0].partition(">")[0], "action")
        hidden = _HIDDEN.findall(forms[0])
        return action, {_attribute(tag, "name"): _attribute(tag, "value") for tag in hidden}

    def key(self, jid: str) -> str:
        """What stands for this job in the addresses and the checkboxes of the page."""
        found = re.search(rf"[\d.]+-{jid}", self.body)
        assert found, f"no {jid} in {self.text}"
        return found[0]


class SidekiqWeb:
    """Sidekiq's web UI in a Ruby process, asked without a network."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def get(self, path: str) -> Page:
        """A page, which must be there."""
        page = self._ask("GET", path)
        assert page.status == 200, page
        return page

    def press(self, path: str, button: str, *, of: str = "", **fields: Any) -> None:
        """Opens a page and presses a button of a form in it, with ``fields`` filled in."""
        action, hidden = self.get(path).form(button, of=of)
        answer = self._ask("POST", action or path, {**hidden, button: "1", **fields})
        assert answer.status in {302, 303}, answer

    def _ask(self, *request: Any) -> Page:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Page(*json.loads(self._process.stdout.readline()))


@contextmanager
def sidekiq_web(server: Server) -> Iterator[SidekiqWeb]:
    """The web UI of Sidekiq upon this server."""
    with subprocess.Popen(
        bound.command(["ruby", "-e", _WEB]),
        env={**os.environ, "REDIS_URL": server.url},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        try:
            yield SidekiqWeb(process)
        finally:
            process.stdin.close()
            process.wait(20)


def _has(form: str, button: str) -> bool:
    return f'name="{button}"' in form


def _attribute(tag: str, name: str) -> str:
    found = re.search(_ATTRIBUTE.format(name), tag)
    return html.unescape(found[1]) if found else ""
