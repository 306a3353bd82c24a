"""What is checked before every page: who asks, from where, and what the browser may do."""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from typing import Final, TypeGuard, cast

import anyio
import anyio.to_thread
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .audit import Refusals, Who
from .origin import LOOPBACK, host_of, is_local, is_same_origin
from .passwords import credentials
from .settings import Authenticate, TooManyTries, WebSettings

_COOKIE: Final = "forkq_csrf"
_SAFE: Final = frozenset({"GET", "HEAD"})
_TOKEN_LENGTH: Final = 43
_ASK: Final = 'Basic realm="forkq", charset="UTF-8"'
_THREADS: Final = 8  # for the app's own authentication, which may be slow


class Guard:
    """Refuses what must not reach a page, and adds the headers of every answer."""

    def __init__(self, app: ASGIApp, settings: WebSettings) -> None:
        self._app = app
        self._settings = settings
        self._limiter: anyio.CapacityLimiter | None = None
        self._refusals = Refusals()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        token, is_new = _csrf_token(request)
        scope["forkq.csrf"] = token
        scope["forkq.nonce"] = secrets.token_urlsafe(16)
        answer = _Answer(send, scope, token if is_new else None)
        refusal = await self._refusal(request)
        await (refusal or self._app)(scope, receive, answer.send)

    async def _refusal(self, request: HTTPConnection) -> Response | None:
        """The answer to a request that no page may see."""
        if (problem := self._from_elsewhere(request)) is not None:
            return problem
        if request.scope["method"] not in _SAFE and not is_same_origin(request):
            return _refused(403, "This form was sent by another site.")
        return await self._unknown_user(request)

    async def _unknown_user(self, request: HTTPConnection) -> Response | None:
        if self._settings.authenticate is None:
            return None
        try:
            user = await self._user(request, self._settings.authenticate)
        except TooManyTries as error:
            self._log(request)
            later = {"Retry-After": str(math.ceil(error.seconds))}
            return _refused(429, f"Too many passwords were tried: {error}.", later)
        if user is None:
            self._log(request)
            return _refused(401, "Who are you?", {"WWW-Authenticate": _ASK})
        request.scope["forkq.user"] = user
        return None

    def _log(self, request: HTTPConnection) -> None:
        """Logs a refusal. A browser that has not been asked for a password yet sends none: that is
        no refusal."""
        if "authorization" in request.headers:
            address = request.client.host if request.client is not None else ""
            user, _ = credentials(request)
            self._refusals.log("sign-in", Who(user), address=address, path=request.url.path)

    async def _user(self, request: HTTPConnection, authenticate: Authenticate) -> str | None:
        if is_async(authenticate):
            return await authenticate(request)
        if self._limiter is None:  # made inside of the event loop
            self._limiter = anyio.CapacityLimiter(_THREADS)
        call = cast("Callable[[HTTPConnection], str | None]", authenticate)
        return await anyio.to_thread.run_sync(call, request, limiter=self._limiter)

    def _from_elsewhere(self, request: HTTPConnection) -> Response | None:
        """The refusal of a request from elsewhere; None if it is allowed. Another host may ask only
        with an authentication, and only for a name of ours: a page of another site whose name was
        made to lead here (DNS rebinding) has its own name."""
        hosts, host = self._settings.hosts, host_of(request)
        if host is None:
            return _refused(400, "The Host header is no host name.")
        checks_host = bool(hosts) or self._settings.authenticate is None
        if checks_host and host not in LOOPBACK.union(hosts):
            return _refused(
                421, f"This is no host name of forkq's web UI; name it in hosts: {host!r}"
            )
        if self._settings.authenticate is None and not is_local(request):
            return _refused(
                403, "Without an authentication, forkq's web UI serves its own host only."
            )
        return None


class _Answer:
    """Adds the security headers to an answer, and a new CSRF token."""

    def __init__(self, send: Send, scope: Scope, token: str | None) -> None:
        self._send = send
        self._scope = scope
        self._token = token

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._add(MutableHeaders(scope=message))
        await self._send(message)

    def _add(self, headers: MutableHeaders) -> None:
        nonce = self._scope["forkq.nonce"]
        headers["Content-Security-Policy"] = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
            "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
            "frame-ancestors 'none'"
        )
        headers["X-Content-Type-Options"] = "nosniff"
        headers["X-Frame-Options"] = "DENY"
        headers["Referrer-Policy"] = "same-origin"
        headers["Cross-Origin-Opener-Policy"] = "same-origin"
        headers["Cross-Origin-Resource-Policy"] = "same-origin"
        if "/static/" not in self._scope["path"]:
            headers["Cache-Control"] = "no-store"
        if self._token is not None:
            headers.append("Set-Cookie", self._cookie(self._token))

    def _cookie(self, token: str) -> str:
        secure = "; Secure" if self._scope.get("scheme") == "https" else ""
        return f"{_COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict{secure}"


def is_async(
    authenticate: Authenticate,
) -> TypeGuard[Callable[[HTTPConnection], Awaitable[str | None]]]:
    """Whether a function is to be awaited; if not, it runs in a thread."""
    called = getattr(authenticate, "__call__", None)  # noqa: B004 - of an object, its method
    return iscoroutinefunction(authenticate) or iscoroutinefunction(called)


def _csrf_token(request: HTTPConnection) -> tuple[str, bool]:
    """The token of this browser, and whether it is new."""
    found = request.cookies.get(_COOKIE, "")
    if len(found) == _TOKEN_LENGTH and found.isascii():
        return found, False
    return secrets.token_urlsafe(32), True


def _refused(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return PlainTextResponse(text + "\n", status, headers)
