"""The web UI of the tests, as a process of its own: `python -m tests.web.serve REDIS_URL [PORT]`.

Prints its port. Ends when its standard input does.
"""

from __future__ import annotations

import socket
import sys
import threading

import uvicorn

import forkq
from forkq.web import create_app


def main() -> None:
    forkq.configure(sys.argv[1])
    listening = socket.create_server(("127.0.0.1", int("".join(sys.argv[2:]) or 0)))
    server = uvicorn.Server(uvicorn.Config(create_app(), log_level="warning", lifespan="off"))
    threading.Thread(target=_end_with_the_test, args=(server,), daemon=True).start()
    print(listening.getsockname()[1], flush=True)  # noqa: T201 - this is what it is for
    server.run([listening])


def _end_with_the_test(server: uvicorn.Server) -> None:
    sys.stdin.read()
    server.force_exit = server.should_exit = True


if __name__ == "__main__":
    main()
