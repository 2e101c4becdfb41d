"""Book of the open connections: how many there may be, and which are closed to let others in."""

import resource
from collections import OrderedDict
from ipaddress import IPv6Address, ip_address
from typing import Protocol

from dlm.errors import DlmError

FILES = 128  # file descriptors that are not for connections: sockets, pipes of compilers, logs
_COMMON = 2048  # connections by default, where the process may open as many files
_ROUTING = 64  # bits of an IPv6 address that name a network: one client has all the rest


class Connection(Protocol):
    """An open connection. Hashable."""

    def evict(self) -> None:
        """Close it at once."""
        ...


class Connections:
    """Counts connections, in all and by address.

    Where there are too many, the one is closed that has been idle for the longest time. Idle are
    *new* connections, which have not sent a complete request, and *kept* ones, which have had an
    answer: the one that is closed is of whichever of these are more, so that neither half-open nor
    kept connections, however many, crowd out the others. A connection whose request is being
    answered is never closed.
    """

    def __init__(self, most: int, most_by_address: int):
        self._most, self._most_by_address = most, most_by_address
        self._all = _Pool()
        self._by_address: dict[str, _Pool] = {}
        self._addresses: dict[Connection, str | None] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def admit(self, connection: Connection, address: str | None) -> bool:
        """Take a new connection, and close others that are too many. `address` is the client's
        network (`network_of`); None is not counted by address. Returns False if there is no room
        and none that could be closed."""
        own = None if address is None else self._by_address.get(address)
        if own is not None and own.open >= self._most_by_address and not self._evict(own):
            return False
        if self._all.open >= self._most and not self._evict(self._all):
            return False
        self._addresses[connection] = address
        if address is not None:
            self._by_address.setdefault(address, _Pool())
        for pool in self._pools(connection):
            pool.open += 1
        self.rest(connection, kept=False)
        return True

    def rest(self, connection: Connection, *, kept: bool) -> None:
        """Note that `connection` is idle from now on; with `kept`, after an answer."""
        for pool in self._pools(connection):
            pool.forget(connection)
            (pool.kept if kept else pool.new)[connection] = None

    def work(self, connection: Connection) -> None:
        """Note that a request of `connection` is being answered."""
        for pool in self._pools(connection):
            pool.forget(connection)

    def remove(self, connection: Connection) -> None:
        """Forget a connection that is closed; one that is not known is ignored."""
        for pool in self._pools(connection):
            pool.forget(connection)
            pool.open -= 1
        address = self._addresses.pop(connection, None)
        if address is not None and not self._by_address[address].open:
            del self._by_address[address]

    def _pools(self, connection: Connection) -> list["_Pool"]:
        if connection not in self._addresses:
            return []
        address = self._addresses[connection]
        return [self._all] if address is None else [self._all, self._by_address[address]]

    def _evict(self, pool: "_Pool") -> bool:
        oldest = pool.oldest()
        if oldest is None:
            return False
        self.remove(oldest)
        oldest.evict()
        return True


class _Pool:
    """Connections of one address, or all of them. The idle ones are in the order in which they
    became so."""

    def __init__(self):
        self.open = 0
        self.new: OrderedDict[Connection, None] = OrderedDict()
        self.kept: OrderedDict[Connection, None] = OrderedDict()

    def forget(self, connection: Connection) -> None:
        self.new.pop(connection, None)
        self.kept.pop(connection, None)

    def oldest(self) -> Connection | None:
        more = self.new if len(self.new) >= len(self.kept) else self.kept
        return next(iter(more), None)


def network_of(host: str | None) -> str | None:
    """Name of the network of a client at the address `host`: the address itself, or the first 64
    bits of one of IPv6. None for no address, as on a Unix socket."""
    if not host:
        return None
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(int(address) >> _ROUTING << _ROUTING)}/{_ROUTING}"


def connections_allowed(most: int | None, requests: int) -> int:
    """Number of connections that the process may have open under its limit of open files
    (`ulimit -n`): `most` of them, by default 2,048, or twice the number of `requests` that may be
    under way if that is more, as far as the limit goes.

    Raises `DlmError` for more than the limit allows, and for a limit that leaves too few.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = 1 << 20 if limit == resource.RLIM_INFINITY else limit - FILES
    if free < 1:
        raise DlmError(
            f"at most {limit} files may be open (ulimit -n), and {FILES} are not for connections: "
            f"it takes at least {FILES + 1}"
        )
    if most is None:
        return min(free, max(_COMMON, 2 * requests))
    if most > free:
        raise DlmError(
            f"max_connections is {most}: ulimit -n is {limit}, which leaves {free} for connections"
        )
    return most
