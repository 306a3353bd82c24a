"""What forkq relies on in redis-py and hiredis: one test for each call that they may change.

Some of these calls are private. If a test fails with a new redis-py, adapt forkq/store/redis_py.py,
or lower the bound in pyproject.toml. The server is scripted, so that each byte sent is seen.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import hiredis
import pytest
import redis

from forkq.store.redis_py import Connector, NoPassword, RawConnection, exceptions
from forkq.wire.password_source import PasswordSource
from tests.support.waiting import wait_until

HELLO: Final = b"%1\r\n$5\r\nproto\r\n:3\r\n"
INVALIDATION: Final = b">2\r\n+invalidate\r\n*1\r\n$3\r\nkey\r\n"
EVERYTHING: Final = b">2\r\n+invalidate\r\n_\r\n"


class ScriptedServer:
    """Answers HELLO, and each other command with the next of ``replies``; None hangs up."""

    def __init__(self) -> None:
        self.replies: list[bytes | None] = []
        self.commands: list[list[bytes]] = []
        self.connections: list[socket.socket] = []
        self.ended = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"

    def say(self, message: bytes) -> None:
        """Sends ``message`` on the latest connection, without having been asked."""
        self.connections[-1].sendall(message)

    def hang_up(self) -> None:
        """Ends the latest connection."""
        self.connections[-1].shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Ends the latest connection with a reset."""
        connection = self.connections[-1]
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RD)  # ends the thread that reads
        wait_until(lambda: self.ended == 1, what="the end of the reader")
        connection.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self._threads[0].join()
        for connection in self.connections:
            with contextlib.suppress(OSError):  # a test may have closed it
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for connection in self.connections:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=[connection]))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        reader = hiredis.Reader()
        try:
            while data := connection.recv(65_536):
                reader.feed(data)
                while (command := reader.gets()) is not False:
                    self.commands.append(command)
                    self._answer(connection, command)
        except OSError:
            pass
        self.ended += 1

    def _answer(self, connection: socket.socket, command: list[bytes]) -> None:
        hello = command[0] == b"HELLO" and not self.replies
        reply = HELLO if hello else self.replies.pop(0) if self.replies else b""
        if reply is None:
            connection.shutdown(socket.SHUT_RDWR)
        else:
            connection.sendall(reply)


@pytest.fixture(autouse=True)
def version_in_the_report() -> None:
    """A failure shows what was captured here."""
    sys.stdout.write(f"redis-py {redis.__version__}, hiredis {hiredis.__version__}\n")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.close()


@pytest.fixture
def connector(server: ScriptedServer) -> Connector:
    return Connector(server.url, timeout=20, connect_timeout=20)


@pytest.fixture
def connection(connector: Connector, server: ScriptedServer) -> Iterator[RawConnection]:
    connection = connector.connect()
    server.commands.clear()
    yield connection
    connection.close()


def ask(connection: RawConnection, server: ScriptedServer, reply: bytes | None) -> Any:
    server.replies.append(reply)
    connection.send([("PING",)])
    return connection.read()


# ConnectionPool.make_connection, connection_kwargs; Connection.connect


def test_make_connection_opens_no_socket(connector: Connector, server: ScriptedServer) -> None:
    made: Any = connector._pool.make_connection()
    assert made._sock is None
    assert server.connections == []


def test_connect_sends_hello_and_nothing_else(server: ScriptedServer) -> None:
    """No CLIENT SETINFO, no CLIENT MAINT_NOTIFICATIONS, no SELECT 0, no PING."""
    Connector(server.url, 20, 20).connect().close()
    assert server.commands == [[b"HELLO", b"3"]]


def test_connect_sends_user_password_and_database_of_the_url(server: ScriptedServer) -> None:
    url = server.url.replace("redis://", "redis://ann:secret@").replace("/0", "/7")
    server.replies = [HELLO, b"+OK\r\n"]
    Connector(url, 20, 20).connect().close()
    [hello, select] = server.commands
    assert hello == [b"HELLO", b"3", b"AUTH", b"ann", b"secret"]
    assert select == [b"SELECT", b"7"]


def test_connect_asks_the_source_of_the_password_each_time(
    server: ScriptedServer, tmp_path: Path
) -> None:
    """The user is that of the URL, or Redis's own."""
    file = tmp_path / "password"
    ann = Connector(server.url.replace("redis://", "redis://ann@"), 20, 20, PasswordSource(file))
    default = Connector(server.url, 20, 20, PasswordSource(file))
    for connector, user, password in ((ann, b"ann", "first"), (ann, b"ann", "second")):
        file.write_text(password)
        connector.connect().close()
        assert server.commands[-1] == [b"HELLO", b"3", b"AUTH", user, password.encode()]
    default.connect().close()
    assert server.commands[-1] == [b"HELLO", b"3", b"AUTH", b"default", b"second"]
    file.unlink()
    with pytest.raises(NoPassword, match=f"password_file {file}: No such file"):
        ann.connect()
    assert len(server.commands) == 3


def test_connect_tries_once(connector: Connector, server: ScriptedServer) -> None:
    server.replies = [None]
    with pytest.raises(exceptions.ConnectionError):
        connector.connect()
    assert len(server.connections) == 1


def test_connection_kwargs_hold_for_the_next_connection(
    connector: Connector, server: ScriptedServer
) -> None:
    connector.set_timeout(0.05)
    server.replies = [b""]
    with pytest.raises(exceptions.TimeoutError):
        connector.connect()


# SSLConnection


@pytest.mark.parametrize(
    ("options", "checks_name", "lowest"),
    [
        ("", True, None),
        ("?ssl_check_hostname=false", False, None),
        ("?ssl_cert_reqs=none", False, None),
        ("?ssl_cert_reqs=none&ssl_check_hostname=true", False, None),
        ("?ssl_min_version=772", True, ssl.TLSVersion.TLSv1_3),
    ],
)
def test_tls_means_the_same_with_each_version(
    server: ScriptedServer, options: str, checks_name: bool, lowest: ssl.TLSVersion | None
) -> None:
    """redis-py 5 checks no host name by itself, and any but 8 takes the lowest version for text."""
    url = server.url.replace("redis:", "rediss:") + options
    made: Any = Connector(url, 20, 20)._pool.make_connection()
    assert (made.check_hostname, made.ssl_min_version) == (checks_name, lowest)
    context = ssl.create_default_context()
    context.check_hostname = made.check_hostname
    context.verify_mode = made.cert_reqs  # Python refuses CERT_NONE with a check of the name
    assert made.cert_reqs == (ssl.CERT_NONE if "none" in options else ssl.CERT_REQUIRED)


# Connection._sock


def test_sock_is_the_open_socket_itself(connection: RawConnection, server: ScriptedServer) -> None:
    """A plain socket: forkq sets its time-outs, waits on it, and closes it in a forked child."""
    assert type(connection.socket) is socket.socket
    assert connection.socket.getsockname() == server.connections[0].getpeername()
    assert connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Python keeps the time-out")
def test_the_socket_blocks_and_the_kernel_keeps_its_timeout(connection: RawConnection) -> None:
    assert connection.socket.gettimeout() is None
    assert connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)[0] == 20


# hiredis.pack_command


def test_send_writes_all_and_reads_nothing(
    connection: RawConnection, server: ScriptedServer
) -> None:
    server.replies = [b"+one\r\n", b"+two\r\n"]
    connection.send([("SET", "k", b"\xff", 1, 0.5), ("GET", "é")])
    wait_until(lambda: len(server.commands) == 2, what="both commands")
    assert server.commands == [[b"SET", b"k", b"\xff", b"1", b"0.5"], [b"GET", "é".encode()]]
    assert [connection.read(), connection.read()] == [b"one", b"two"]


def test_hiredis_is_handed_no_numbers(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hiredis 3.5.0 ends the process if a signal handler raises while it packs one. redis-py hands
    it the 3 of HELLO, and the database."""
    handed: list[tuple[object, ...]] = []
    pack: Any = hiredis.pack_command

    def note(command: tuple[object, ...]) -> Any:
        handed.append(command)
        return pack(command)

    monkeypatch.setattr(hiredis, "pack_command", note)
    server.replies = [HELLO, b"+OK\r\n"]
    connection = Connector(server.url.replace("/0", "/7"), 20, 20).connect()
    connection.send([("SET", "k", b"\xff", 1, 0.5), (b"GET", "é")])
    connection.close()
    assert [command[0] for command in handed] == ["HELLO", "SELECT", "SET", b"GET"]
    assert {type(each) for command in handed for each in command} == {bytes, str}


@pytest.mark.parametrize("bad", [None, True, [1]])
def test_what_is_no_text_and_no_number_is_refused(connection: RawConnection, bad: object) -> None:
    with pytest.raises(TypeError, match="must be str, int, float or bytes"):
        connection.send([("SET", "k", 1, bad)])


def test_send_checks_no_health(connection: RawConnection, server: ScriptedServer) -> None:
    """It would send a PING, and read its reply."""
    assert ask(connection, server, b":1\r\n") == 1
    assert server.commands == [[b"PING"]]


def test_nothing_is_sent_again_after_a_lost_reply(
    connection: RawConnection, server: ScriptedServer
) -> None:
    with pytest.raises(exceptions.ConnectionError):
        ask(connection, server, None)
    assert server.commands == [[b"PING"]]
    assert len(server.connections) == 1


# hiredis.Reader, _parser.parse_error


def test_read_decodes_nothing(connection: RawConnection, server: ScriptedServer) -> None:
    assert ask(connection, server, b"*3\r\n$1\r\n\xff\r\n:7\r\n_\r\n") == [b"\xff", 7, None]


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("ERR no", exceptions.ResponseError),
        ("WRONGTYPE Operation against a key", exceptions.ResponseError),
        ("NOREPLICAS Not enough good replicas", exceptions.ResponseError),
        ("NOSCRIPT No matching script", exceptions.NoScriptError),
        ("NOPERM this user has no permissions", exceptions.NoPermissionError),
        ("OOM command not allowed", exceptions.OutOfMemoryError),
        ("READONLY You can't write", exceptions.ReadOnlyError),
        ("MOVED odd", exceptions.ResponseError),
    ],
)
def test_read_raises_each_refusal_and_the_connection_goes_on(
    connection: RawConnection, server: ScriptedServer, said: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        ask(connection, server, f"-{said}\r\n".encode())
    assert isinstance(caught.value, exceptions.ResponseError)
    assert ask(connection, server, b"+fine\r\n") == b"fine"
    assert len(server.connections) == 1


def test_read_returns_an_error_inside_a_list(
    connection: RawConnection, server: ScriptedServer
) -> None:
    [error] = ask(connection, server, b"*1\r\n-ERR no\r\n")
    assert isinstance(error, exceptions.ResponseError)


def test_a_reply_may_come_in_pieces_and_be_long(
    connection: RawConnection, server: ScriptedServer
) -> None:
    long = bytes(range(256)) * 1000
    whole = b"*2\r\n$%d\r\n%b\r\n#f\r\n" % (len(long), long)
    server.replies.append(whole[:3])
    connection.send([("PING",)])
    wait_until(lambda: len(server.commands) == 1, what="the command")
    rest = threading.Thread(target=server.say, args=[whole[3:]])
    rest.start()
    assert connection.read() == [long, False]
    rest.join()


def test_false_is_a_reply(connection: RawConnection, server: ScriptedServer) -> None:
    """It does not stand for one that has not come yet."""
    assert ask(connection, server, b"#f\r\n") is False


def test_a_reset_is_a_lost_connection(connection: RawConnection, server: ScriptedServer) -> None:
    server.replies.append(b"$5\r\nhalf")
    connection.send([("PING",)])
    wait_until(connection.can_read, what="half a reply")
    server.reset()
    with pytest.raises(exceptions.ConnectionError, match="reset by peer"):
        connection.read()


def test_what_is_no_reply_is_an_error(connection: RawConnection, server: ScriptedServer) -> None:
    with pytest.raises(exceptions.InvalidResponse):
        ask(connection, server, b"HTTP/1.1 400 Bad Request\r\n")


def test_nothing_can_be_sent_to_a_server_that_is_gone(
    connection: RawConnection, server: ScriptedServer
) -> None:
    server.hang_up()
    wait_until(connection.can_read, what="the end")
    connection.socket.shutdown(socket.SHUT_WR)
    with pytest.raises(exceptions.ConnectionError, match="Broken pipe"):
        connection.send([("PING",)])


def test_a_late_reply_is_a_timeout(connector: Connector, server: ScriptedServer) -> None:
    connection = connector.connect()
    connection.set_timeout(0.05)
    connection.send([("PING",)])
    with pytest.raises(exceptions.TimeoutError, match=r"0\.05 s|[Tt]imeout"):
        connection.read()
    connection.close()


# hiredis.Reader.has_data


def test_can_read_sees_what_is_sent_and_what_is_buffered(
    connection: RawConnection, server: ScriptedServer
) -> None:
    assert connection.can_read() is False
    server.say(b"+one\r\n+two\r\n")
    wait_until(connection.can_read, what="the replies")
    assert connection.read() == b"one"
    assert connection.can_read() is True  # the parser has it; the socket has nothing more
    assert connection.read() == b"two"
    assert connection.can_read() is False


def test_can_read_sees_that_the_server_has_hung_up(
    connection: RawConnection, server: ScriptedServer
) -> None:
    server.hang_up()
    wait_until(connection.can_read, what="the end")
    with pytest.raises(exceptions.ConnectionError, match="closed"):
        connection.read()


# hiredis.PushNotification


@pytest.mark.parametrize(("push", "keys"), [(INVALIDATION, [b"key"]), (EVERYTHING, None)])
def test_an_invalidation_before_a_reply_is_passed_on(
    connection: RawConnection, server: ScriptedServer, push: bytes, keys: object
) -> None:
    changed: list[object] = []
    connection.on_invalidation(changed.append)
    assert ask(connection, server, push + b"+reply\r\n") == b"reply"
    assert changed == [keys]


def test_a_push_request_reads_one_invalidation(
    connection: RawConnection, server: ScriptedServer
) -> None:
    changed: list[object] = []
    connection.on_invalidation(changed.append)
    server.say(INVALIDATION + EVERYTHING)
    for expected in ([[b"key"]], [[b"key"], None]):
        wait_until(connection.can_read, what="an invalidation")
        connection.read_push()
        assert changed == expected
    assert connection.can_read() is False


@pytest.mark.parametrize(
    ("said", "kind", "text"),
    [
        (b"-ERR idle for too long\r\n", exceptions.ResponseError, "idle for too long"),
        (b"-LOADING x\r\n", exceptions.BusyLoadingError, "x"),
        (b":5\r\n", exceptions.ConnectionError, "no command awaits"),
        (b"_\r\n", exceptions.ConnectionError, "no command awaits"),
        (b"*0\r\n", exceptions.ConnectionError, "no command awaits"),
    ],
)
def test_what_no_command_asked_for_ends_the_connection(
    connection: RawConnection, server: ScriptedServer, said: bytes, kind: type[Exception], text: str
) -> None:
    server.say(said)
    wait_until(connection.can_read, what="the message")
    with pytest.raises(kind, match=text):
        connection.read_push()


@pytest.mark.parametrize("push", [b">0\r\n", b">1\r\n+invalidate\r\n", b">2\r\n+other\r\n:1\r\n"])
def test_a_push_of_another_kind_is_passed_over(
    connection: RawConnection, server: ScriptedServer, push: bytes
) -> None:
    changed: list[object] = []
    connection.on_invalidation(changed.append)
    assert ask(connection, server, push + b"+reply\r\n") == b"reply"
    assert changed == []


# Connection.disconnect


def test_disconnect_closes_the_socket_and_may_be_called_twice(
    connection: RawConnection, server: ScriptedServer
) -> None:
    connection.close()
    connection.close()
    wait_until(lambda: server.ended == 1, what="the end of the connection")
    with pytest.raises(exceptions.ConnectionError):
        connection.read()
    assert len(server.connections) == 1
