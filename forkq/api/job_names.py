"""The secret with which the names of jobs are made (``JobEntry.key``).

The name of a job tells it from others with the same score, so it has a digest of the whole payload,
and stands in links and forms for people who may not see all of that payload. Without a secret, such
a person could try which masked value gives this digest.
"""

from __future__ import annotations

import hashlib
import time
from typing import Final
from weakref import WeakKeyDictionary

from ..servers import Server
from ..wire.keys import new_secret

# Seconds after which a process looks again which secret Redis has: it may have lost it.
SECRET_FOR: Final = 10.0


class Namer:
    """Makes names of jobs with the secret of a deployment, which it never shows."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def digest(self, raw: bytes) -> str:
        """The part of a name that depends on the payload."""
        return hashlib.blake2b(raw, digest_size=8, key=self._secret).hexdigest()

    def agree(self, server: Server) -> Namer:
        """Agrees with other processes on a secret. Returns the namer with the secret that is in
        Redis. If there is none, or Redis refuses, it returns this namer, whose secret it writes
        there if it may. Raises ServerUnavailable."""
        name = server.keys.secret
        with server.connection() as connection:
            [found] = connection.pipeline([("GET", name)])
            if found is None:
                own = ("SET", name, self._secret, "NX")
                _, found = connection.pipeline([own, ("GET", name)])
        # An error is no secret, nor is what another program may have written there.
        is_secret = isinstance(found, bytes) and len(found) == len(self._secret)
        return Namer(found) if is_secret else self


# The namer of each server, and until when its secret is taken for that of Redis.
_known: WeakKeyDictionary[Server, tuple[Namer, float]] = WeakKeyDictionary()


def agreed_namer(server: Server) -> Namer:
    """The namer on which all processes of this deployment, or of this shard, agree. Raises
    ServerUnavailable."""
    namer, until = _known.get(server, (None, 0.0))
    if namer is None or time.monotonic() >= until:
        namer = (namer or Namer(new_secret())).agree(server)
        _known[server] = namer, time.monotonic() + SECRET_FOR
    return namer
