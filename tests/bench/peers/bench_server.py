"""A server of HTTP that answers each request after 100 ms. Prints its port."""

from __future__ import annotations

import asyncio

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n\r\nok"
PAUSE = 0.1  # seconds


class Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._read = b""

    def data_received(self, data: bytes) -> None:
        self._read += data
        if self._read.endswith(b"\r\n\r\n"):
            self._read = b""
            asyncio.get_running_loop().call_later(PAUSE, self._transport.write, ANSWER)


async def main() -> None:
    """Serves until it is killed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
