"""The process of ``forkq metrics``: /metrics, /livez and /readyz over HTTP, and nothing else."""

from __future__ import annotations

import ipaddress
import socket
import sys
import threading
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from ..errors import ConfigError
from ..runtime.listener import listen
from ..runtime.waiting_clients import WaitingClients
from .exposition import Exposition, MetricsText

# Seconds for a whole head, and for the client to read its answer.
_PATIENCE: Final = 10.0
# Clients that the server waits for, and questions to Redis at once.
_MOST: Final = 50
_PLAIN: Final = "text/plain; charset=utf-8"


def address_of(listen: str, *, allow_remote: bool) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``; an IPv6 address is in brackets. Raises ConfigError for
    anything else, and for an address beyond this host unless ``allow_remote`` is set."""
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isdigit() and int(port) < 1 << 16):
        raise ConfigError(f"--listen {listen}: give HOST:PORT, such as 127.0.0.1:9394")
    if not (allow_remote or _is_loopback(host)):
        raise ConfigError(
            f"--listen {listen}: other hosts could read the names of your jobs, queues and hosts "
            "there, without a password; listen on 127.0.0.1, or add --allow-remote if a firewall "
            "or a network policy lets only your scraper in"
        )
    return host, int(port)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name may lead anywhere
        return False


class MetricsServer(ThreadingHTTPServer):
    """Serves until ``shutdown``. Raises ForkqError if the address cannot be listened at."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], exposition: Exposition) -> None:
        self.exposition = exposition
        self.waiting = WaitingClients(_PATIENCE, _MOST)
        self.asking = threading.BoundedSemaphore(_MOST)
        super().__init__(address, _Handler, bind_and_activate=False)
        self.socket.close()  # it has made one for IPv4
        self.socket = listen(*address)
        self.server_address = self.socket.getsockname()[:2]

    def service_actions(self) -> None:
        """Closes clients that take too long. The loop of the server calls it about twice a
        second."""
        self.waiting.close_late()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.waiting.opened(client_address[:2], lambda: _shut_down(request))
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.waiting.closed(client_address[:2])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints nothing: a client that has gone, or was closed, is no error."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def _shut_down(client: socket.socket) -> None:
    """Shuts a connection down. The thread that reads from it sees its end, and closes it."""
    with suppress(OSError):  # it has just been closed
        client.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = _PATIENCE
    server_version = "forkq"
    sys_version = ""

    def do_GET(self) -> None:
        self.server.waiting.answers(self.client_address[:2])
        path = self.path.partition("?")[0]
        if path == "/livez":
            self._say(HTTPStatus.OK, "ok")
        elif path not in {"/metrics", "/readyz"}:
            self._say(HTTPStatus.NOT_FOUND, "there are /metrics, /livez and /readyz")
        elif not self.server.asking.acquire(blocking=False):
            self._say(HTTPStatus.SERVICE_UNAVAILABLE, "too many ask at once; ask again later")
        else:
            try:
                self._ask(path)
            finally:
                self.server.asking.release()

    def _ask(self, path: str) -> None:
        """Answers a request for a path for which Redis must be asked."""
        if path == "/metrics":
            accept = self.headers.get("Accept", "")
            self._answer(HTTPStatus.OK, self.server.exposition.render(accept))
        else:
            why = self.server.exposition.check()
            self._say(HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK, why or "ok")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _say(self, status: HTTPStatus, text: str) -> None:
        self._answer(status, MetricsText(_PLAIN, f"{text}\n".encode()))

    def _answer(self, status: HTTPStatus, page: MetricsText) -> None:
        self.send_response(status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    def log_message(self, *_: object) -> None:
        """Logs nothing: a line for each scrape would hide the others."""
