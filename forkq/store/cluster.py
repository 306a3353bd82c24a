"""Reaches the node of a Redis Cluster that has forkq's slot, and follows when another one gets it.

A node refuses a command for a slot that it does not have, before it does anything. So no process
needs to ask now and then, as with Sentinels. A process asks the nodes who has the slot when it
connects. Once a node has said that the slot moved, the process uses no idle connection to that node
any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

from ..wire.password_source import PasswordSource
from ..wire.redis_url import ClusterUrl
from .redis_py import Connector, RawConnection, exceptions
from .sentinel import Address, MasterLost, address_text, check_role, refuses_or_answers

# Seconds that one step may take while a node is looked for: a connect, a login, an answer.
_STEP: Final = 1.0
# The server refuses so before it does anything: the slot is elsewhere, it moves now, or the cluster
# has lost too many nodes. AskError includes MovedError.
ELSEWHERE: Final = (
    exceptions.AskError,
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
)


class SlotElsewhere(MasterLost):
    """The node cannot serve the slot now: another one has it, it moves, or the cluster is down."""


def elsewhere(error: Exception) -> SlotElsewhere:
    """What to raise for one of ``ELSEWHERE``: it is no refusal of a single command."""
    if isinstance(error, exceptions.MovedError):
        return SlotElsewhere(f"slot {error.slot_id} is on {error.host}:{error.port} now")
    if isinstance(error, exceptions.ClusterDownError):
        return SlotElsewhere(f"the cluster is down: {error}")
    return SlotElsewhere("its slot moves to another node; forkq waits until all of it has moved")


class ClusterConnector:
    """Opens connections to the node that has the slot. It has the methods of ``Connector``."""

    def __init__(
        self,
        url: str,
        parts: ClusterUrl,
        slot: int,
        timeout: float,
        connect_timeout: float,
        password_source: PasswordSource | None = None,
    ) -> None:
        self._parts = parts
        self._slot = slot
        self._password_source = password_source
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._view = ClusterView.of(url, slot, parts)

    def connect(self) -> RawConnection:
        """A new connection to the node that has the slot, logged in. Raises ConnectionLost or
        RedisError.

        It asks one node after the other until one has named a node that can be used: a node that
        was cut off may name the one before.
        """
        failures: list[Exception] = []
        tried: set[Address] = set()
        for node in self._view.nodes():
            try:
                owner = self._ask(node)
                if owner not in tried:
                    tried.add(owner)
                    return self._connect_to(owner)
            except exceptions.RedisError as error:
                failures.append(error)
        raise self._failure(failures)

    def set_timeout(self, seconds: float) -> None:
        """No read, and no step of a connect, waits longer on the connections to come."""
        self._timeout = self._connect_timeout = seconds

    def _ask(self, node: Address) -> Address:
        """Which node has the slot, as this one says."""
        try:
            connection = self._open(node)
            try:
                connection.send([("CLUSTER", "SLOTS")])
                found = owner_of(self._slot, connection.read(), node)
            finally:
                connection.close()
        except exceptions.RedisError as error:
            error.args = (f"the node {address_text(node)}: {error}{_remedy(error)}",)
            raise
        if found is None:
            raise MasterLost(f"the node {address_text(node)} knows no owner of slot {self._slot}")
        self._view.learn(found[1])
        return found[0]

    def _connect_to(self, owner: Address) -> RawConnection:
        raw = self._open(owner)
        try:
            check_role(raw, owner, "the cluster names")
            raw.set_timeout(self._timeout)
        except BaseException:
            raw.close()
            raise
        self._view.prefer(owner)
        return NodeConnection(raw, self._timeout, owner, self._view)

    def _open(self, node: Address) -> RawConnection:
        step = min(_STEP, self._timeout)
        url = self._parts.node_url(*node)
        connect_step = min(step, self._connect_timeout)
        return Connector(url, step, connect_step, self._password_source).connect()

    def _failure(self, failures: list[Exception]) -> Exception:
        """If each node that there is refuses, to wait will not help."""
        if failures and all(refuses_or_answers(error) for error in failures):
            return failures[0]
        told = "; ".join(dict.fromkeys(str(error).rstrip(".") for error in failures))
        return MasterLost(f"no node of the cluster serves slot {self._slot}: {told}")


class NodeConnection(RawConnection):
    """A connection on which no thread waits, and that no pool lends, once the slot has moved. What
    is sent to a node without the slot is refused; so a push in several batches goes on until
    then."""

    __slots__ = ("_address", "_moves", "_view")

    def __init__(
        self, raw: RawConnection, timeout: float, address: Address, view: ClusterView
    ) -> None:
        super().__init__(raw._connection, timeout)
        self._address = address
        self._view = view
        self._moves = view.moves

    def can_read(self) -> bool:
        """Whether the server has sent something. Raises SlotElsewhere once the slot has moved."""
        self.check()
        return super().can_read()

    def check(self) -> None:
        """Raises SlotElsewhere once the slot has moved. Asks no server."""
        if self._moves != self._view.moves:
            raise SlotElsewhere(f"the slot of forkq's keys has left {address_text(self._address)}")

    def read_replies(self, count: int) -> list[Any]:
        """Reads the next ``count`` replies. Notes if one says that the slot has moved."""
        return self._noted(super().read_replies(count))

    def replies_in(self, received: bytes) -> list[Any]:
        """The replies that end in these bytes. Notes if one says that the slot has moved."""
        return self._noted(super().replies_in(received))

    def _noted(self, replies: list[Any]) -> list[Any]:
        for reply in replies:
            if isinstance(reply, exceptions.MovedError):
                self._view.moved((reply.host or self._address[0], reply.port), self._moves)
        return replies

    def lost(self, error: OSError) -> exceptions.RedisError:
        """The error for one of the socket, with the node's address: this may be a failover."""
        found = super().lost(error)
        if isinstance(found, exceptions.TimeoutError):
            return found
        return MasterLost(f"the node {address_text(self._address)}: {found}")


class ClusterView:
    """What this process knows of the nodes of one cluster, and of one slot. All of its connections
    share it, without a lock: at worst, two threads ask at the same time.

    ``moves`` counts how often the slot was found on another node."""

    _known: ClassVar[dict[tuple[str, int], ClusterView]] = {}

    def __init__(self, seeds: tuple[Address, ...]) -> None:
        self.moves = 0
        self._seeds = seeds
        self._nodes: tuple[Address, ...] = ()
        self._first: Address | None = None

    @classmethod
    def of(cls, url: str, slot: int, parts: ClusterUrl) -> ClusterView:
        """The one of this process for a slot of the cluster at ``url``."""
        return cls._known.setdefault((url, slot), cls(parts.nodes))

    def nodes(self) -> Iterator[Address]:
        """Each node that is known: first the one that most likely has the slot."""
        first = () if self._first is None else (self._first,)
        yield from dict.fromkeys((*first, *self._nodes, *self._seeds))

    def learn(self, nodes: tuple[Address, ...]) -> None:
        """A node has named these. One that has left the cluster is not among them."""
        self._nodes = nodes

    def prefer(self, node: Address) -> None:
        """This one has the slot."""
        self._first = node

    def moved(self, node: Address, moves: int) -> None:
        """A node says that this one has the slot. ``moves``: how many there were when the
        connection was opened over which it says so; an old one says nothing new."""
        if moves == self.moves:
            self.moves += 1
            self._first = node


def _remedy(error: Exception) -> str:
    """What to do about a node that is in no cluster; "" for another error."""
    if "cluster support disabled" not in str(error):
        return ""
    return ", so it is no Redis Cluster: write redis:// in place of cluster://"


def owner_of(slot: int, ranges: Any, asked: Address) -> tuple[Address, tuple[Address, ...]] | None:
    """From the reply to CLUSTER SLOTS: the primary of the slot, and all nodes."""
    owner, nodes = None, []
    for first, last, primary, *replicas in ranges:
        found = [_address(node, asked) for node in (primary, *replicas)]
        nodes += found
        if first <= slot <= last:
            owner = found[0]
    return owner and (owner, tuple(nodes))


def _address(node: Any, asked: Address) -> Address:
    """A node that does not know its own host leaves it out: it is the one that was asked."""
    host = node[0].decode() if node[0] else ""
    return (host if host not in ("", "?") else asked[0]), int(node[1])
