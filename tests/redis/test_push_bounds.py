"""What a client refuses to push, and what an error of the server's may repeat."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from redis import Redis

import forkq
from forkq.errors import InvalidJob, ServerRefused
from tests.support.payloads import nested
from tests.support.server import Server

SECRET = "medical-record-4711"
PASSWORD = "open-sesame-42"


@pytest.fixture
def client(redis_server: Server) -> Iterator[forkq.Client]:
    found = forkq.Client(redis_server.url, max_payload_size=2000, max_nesting=20)
    yield found
    found.close()


@pytest.mark.parametrize("at", [None, 60])
def test_a_job_beyond_the_bounds_is_refused_and_nothing_is_pushed(
    redis: Redis, client: forkq.Client, at: int | None
) -> None:
    when = {} if at is None else {"at": at}
    with pytest.raises(InvalidJob, match=r"'Mail': its payload has 2,\d+ bytes, .* most is 2,000"):
        client.push({"class": "Mail", "args": [SECRET * 105], **when})
    with pytest.raises(InvalidJob, match=r"'Mail': its payload has 21 levels .* most is 20") as e:
        client.push({"class": "Mail", "args": nested(20), **when})
    assert "max_nesting" in str(e.value)
    with pytest.raises(InvalidJob, match=r"row 1 .*'Mail': its payload has 21 levels"):
        client.push_bulk({"class": "Mail", "args": [[], nested(20)], **when})
    assert redis.dbsize() == 0
    assert client.push({"class": "Mail", "args": nested(19), **when})


@forkq.job
def mail(*rows: Any) -> None:
    """A job whose pushes are refused."""


@pytest.mark.parametrize(
    "push",
    [
        lambda client: client.push({"class": "Mail", "args": {"password": SECRET}}),
        lambda client: client.push({"class": "Mail", "args": SECRET}),
        lambda client: client.push(["Mail", SECRET]),
        lambda client: client.push({"class": "Mail", "args": [{"token": {SECRET}}]}),
        lambda client: client.push({"class": "Mail", "args": [SECRET.encode()]}),
        lambda client: client.push({"class": "Mail", "args": [SECRET + "\ud800"]}),
        lambda client: client.push({"class": "Mail", "args": [[SECRET] * 500]}),
        lambda client: client.push_bulk({"class": "Mail", "args": SECRET}),
        lambda client: client.push_bulk({"class": "Mail", "args": [SECRET]}),
        lambda client: cast("Any", mail.perform_bulk)([SECRET]),
        lambda client: mail.perform_async({SECRET}),
    ],
)
def test_a_refused_push_does_not_repeat_an_argument(
    client: forkq.Client, push: Callable[[Any], object]
) -> None:
    """The error is raised in an app, which logs it."""
    with pytest.raises(InvalidJob) as refused:
        push(client)
    error = refused.value
    assert SECRET not in repr([error, error.__cause__])


@pytest.fixture
def server_without_push(tmp_path: Path) -> Iterator[Server]:
    """A server that does not know one command, as some proxies."""
    include = tmp_path / "renamed.conf"
    include.write_text('rename-command LPUSH ""\n')
    server = Server(extra=("--include", str(include))).start()
    yield server
    server.close()


def test_an_unknown_command_does_not_repeat_a_job(server_without_push: Server) -> None:
    """The server's answer has the job: "unknown command 'LPUSH', with args beginning with: ..."."""
    refused = refusal(server_without_push.url)
    assert "unknown command" in refused
    assert "Mail" not in refused
    assert SECRET not in refused


def test_an_unknown_login_does_not_repeat_the_password() -> None:
    """As Redis 5 and proxies answer to HELLO, which has the password in it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answering = threading.Thread(target=refuse_login, args=(listener,))
        answering.start()
        refused = refusal(f"redis://:{PASSWORD}@127.0.0.1:{listener.getsockname()[1]}/0")
        answering.join()
    assert "unknown command 'HELLO'" in refused
    assert PASSWORD not in refused


def refuse_login(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        words = connection.recv(1000).split(b"\r\n")[4::2]
        repeated = b" ".join(b"'" + word + b"'" for word in words)
        connection.sendall(
            b"-ERR unknown command 'HELLO', with args beginning with: " + repeated + b" \r\n"
        )
        connection.recv(1)


def refusal(url: str) -> str:
    """The error of a push, and those that led to it."""
    client = forkq.Client(url)
    with pytest.raises(ServerRefused) as refused:
        client.push({"class": "Mail", "args": [SECRET]})
    client.close()
    error = refused.value
    return repr([error, error.__cause__, error.__context__])
