"""Where in its grammar a text may be, and the shortest text that completes it from there.

An Earley parser over a `Network`, whose places are shared: a text that comes back to the same
situation comes back to the same object, so that reading on is a look-up. What a matcher cannot
tell, how far the end is, is known at each of them. It holds no matcher and decides nothing.
"""

from collections.abc import Collection, Iterable

from dlm.grammar.parse.network import Call, Network

_REMEMBERED = 100_000  # places, before sharing begins anew
_FORCED = 1024  # bytes of a text that must follow

Item = tuple[int, "Callers"]  # a state of a rule, and where it goes on when the rule ends


class Callers:
    """Who waits for one rule to end. A caller may be among its own: left recursion."""

    __slots__ = ("best", "cost", "ends", "room", "tokens", "waiting")

    def __init__(self, ends: bool = False):
        self.waiting: list[Item] = []  # states to go on in, and their own callers
        self.ends = ends  # nobody waits: it is the text that ends
        self.cost = 0 if ends else None  # bytes to its end, once the rule has ended; None: no way
        self.best: Item | None = None  # where the shortest way goes on
        self.tokens: int | None = None  # how many that takes, once somebody has counted
        self.room: int | None = None  # characters of a loose repetition that may follow the rule


class Place:
    """A situation within a grammar. Moved from by `Places.after`, never changed.

    `room` is how many characters may follow of those that the matcher does not count, None where it
    counts all; `midway`, another one is begun. `cost` bounds the tokens to the end of the text: it
    counts bytes, and named tokens. It is None where the grammar has no end in sight.
    """

    __slots__ = ("best", "cost", "forced", "items", "midway", "named", "next", "room")

    def __init__(
        self,
        items: list[Item],
        best: Item | None,
        cost: int | None,
        named: bool,
        room: int | None,
        midway: bool,
    ):
        self.items = items  # those that a byte or a named token moves
        self.best, self.cost = best, cost  # where the shortest way to the end begins
        self.named = named  # a token may be asked for by its id
        self.room, self.midway = room, midway
        # As far as known:
        self.next: dict[int, Place | None] = {}  # by the next byte
        self.forced: str | None = None  # the text that must follow


class Places:
    """The places of one grammar, made as texts reach them."""

    def __init__(self, network: Network):
        self._network = network
        self._known: dict[frozenset[Item], Place] = {}
        self._callers: dict[frozenset[Item], Callers] = {}  # by who waits
        self._end = Callers(ends=True)
        self.start = self._place([(network.start[network.root], self._end)])

    def __len__(self) -> int:
        """How many are known."""
        return len(self._known)

    def after(self, place: Place, token: int, piece: bytes) -> Place | None:
        """The place behind a token whose bytes are `piece`; None where the grammar refuses it."""
        at, here = None, place
        for byte in piece:
            at = here.next[byte] if byte in here.next else self.behind(here, byte)
            if at is None:
                break
            here = at
        if not place.named:
            return at
        items = [
            (edge.to, callers)
            for state, callers in place.items
            for edge in self._network.shape(state).tokens
            if edge.takes(token)
        ]
        if at is None or not items:
            return self._place(items) if items else at
        return self._place([*at.items, *items])

    def completion(self, place: Place) -> list[bytes | int]:
        """A shortest text from `place` to the end: bytes, and ids of tokens that are named."""
        return _text(self._network, place.best) if place.best else []

    def behind(self, place: Place, byte: int) -> Place | None:
        """The place behind a byte of text."""
        if byte not in place.next:
            items = [
                (edge.to, callers)
                for state, callers in place.items
                for edge in self._network.shape(state).bytes
                if edge.low <= byte <= edge.high
            ]
            place.next[byte] = self._place(items) if items else None
        return place.next[byte]

    def forced(self, place: Place) -> str:
        """The text that every sentence goes on with from `place`; of a long one, its beginning."""
        if place.forced is None:
            said, at = bytearray(), place
            while len(said) < _FORCED and (byte := self._only(at)) is not None:
                behind = self.behind(at, byte)
                if behind is None:
                    break
                said.append(byte)
                at = behind
            place.forced = said.decode(errors="ignore")  # it may end within a character
        return place.forced

    def _only(self, place: Place) -> int | None:
        """The one byte that may follow; None where another may, or a token, or nothing."""
        if place.named or not place.cost:
            return None
        ranges = self.ranges(place)
        low = min((low for low, _ in ranges), default=0)
        return low if ranges and low == max(high for _, high in ranges) else None

    def ranges(self, place: Place) -> list[tuple[int, int]]:
        """The ranges of bytes that may follow."""
        edges = (edge for state, _ in place.items for edge in self._network.shape(state).bytes)
        return [(edge.low, edge.high) for edge in edges]

    def named(self, place: Place) -> set[int]:
        """The tokens that are asked for by their ids."""
        edges = (edge for state, _ in place.items for edge in self._network.shape(state).tokens)
        return {token for edge in edges if edge.listed for token in edge.ids}

    def _place(self, items: Iterable[Item]) -> Place:
        kernel = frozenset(items)
        if kernel not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
                self._callers.clear()
                self.start.next.clear()
            self._known[kernel] = self._closed(kernel)
        return self._known[kernel]

    def _closed(self, kernel: frozenset[Item]) -> Place:
        """Predict and complete until nothing is new."""
        network, final = self._network, self._network.final
        seen, work = set(kernel), list(kernel)
        called: dict[int, Callers] = {}  # from here, by rule
        moving: list[Item] = []
        named = False
        while work:
            state, callers = item = work.pop()
            shape = network.shape(state)
            if shape.bytes or shape.tokens:
                moving.append(item)
                named = named or bool(shape.tokens)
            reached = [(to, callers) for to in shape.skips]
            if state in final:
                reached += callers.waiting
            for call in shape.calls:
                reached += self._called(call, callers, called)
            for new in reached:
                if new not in seen:
                    seen.add(new)
                    work.append(new)
        if called:
            shared = self._shared(called)
            moving = [(state, shared.get(callers, callers)) for state, callers in moving]
        cost, best = _shortest(network, kernel)
        room, midway = _room(network, seen), False
        if room is None:  # perhaps within a character
            room = max((on.room for _, on in moving if on.room is not None), default=None)
            midway = room is not None
        return Place(moving, best, cost, named, room, midway)

    def _shared(self, called: dict[int, Callers]) -> dict[Callers, Callers]:
        """The callers that stand for those of `called` everywhere: one for all who wait alike.

        Those among whose callers they are themselves stand for themselves alone.
        """
        shared: dict[Callers, Callers] = {}
        circular = set(called.values())
        while settled := [c for c in circular if not any(on in circular for _, on in c.waiting)]:
            circular -= set(settled)
            for callers in settled:
                waiting = frozenset((to, shared.get(on, on)) for to, on in callers.waiting)
                if waiting not in self._callers:
                    callers.waiting = list(waiting)
                    callers.room = _room(self._network, waiting)
                    self._callers[waiting] = callers
                shared[callers] = self._callers[waiting]
        for callers in circular:
            callers.waiting = [(to, shared.get(on, on)) for to, on in callers.waiting]
        own = (shared.get(callers, callers) for _, callers in sorted(called.items()))
        _measure(self._network, [callers for callers in own if callers.cost is None])
        return shared

    def _called(self, call: Call, callers: Callers, called: dict[int, Callers]) -> list[Item]:
        """Enter a rule: once for all who call it from here."""
        network, entry = self._network, self._network.start[call.rule]
        reached = [(call.to, callers)] if network.nullable(call.rule) else []
        if network.tail(call.to):  # its end is the caller's end
            return [*reached, (entry, callers)]
        own = called.setdefault(call.rule, Callers())
        if (call.to, callers) not in own.waiting:
            own.waiting.append((call.to, callers))
        return [*reached, (entry, own)]


def _measure(network: Network, called: list[Callers]) -> None:
    """The ways on from callers that may wait for each other: first their costs, then the ways."""
    changed = True
    while changed:
        changed = False
        for callers in called:
            cost = _least(network, callers.waiting)
            if cost is not None and (callers.cost is None or cost < callers.cost):
                callers.cost, changed = cost, True
    undecided = [callers for callers in called if callers.cost is not None]
    while undecided:
        for callers in undecided:
            callers.best = _shortest(network, callers.waiting)[1]
        undecided = [callers for callers in undecided if callers.best is None]


def _room(network: Network, items: Iterable[Item]) -> int | None:
    """The most that any of `items` has room for."""
    rooms = (network.room(state) for state, _ in items)
    return max((room for room in rooms if room is not None), default=None)


def _least(network: Network, items: Iterable[Item]) -> int | None:
    """Bytes to the end of the text, from the nearest of `items`."""
    costs = (_cost(network, item) for item in items)
    return min((cost for cost in costs if cost is not None), default=None)


def _cost(network: Network, item: Item) -> int | None:
    rest, after = network.cost.get(item[0]), item[1].cost
    return None if rest is None or after is None else rest + after


def _shortest(network: Network, items: Collection[Item]) -> tuple[int | None, Item | None]:
    """The least cost, and an item with that cost whose way on is decided.

    Of several it is the one whose text sorts first: it must not depend on what was read before.
    """
    least, ways = None, []
    for item in items:
        cost = _cost(network, item)
        if cost is None or (least is not None and cost > least):
            continue
        if cost != least:
            least, ways = cost, []
        if item[1].best is not None or item[1].ends:
            ways.append(item)
    if len(ways) > 1:
        return least, min(ways, key=lambda item: [str(part) for part in _text(network, item)])
    return least, ways[0] if ways else None


def _text(network: Network, item: Item | None) -> list[bytes | int]:
    """A shortest text from `item` to the end."""
    said: list[bytes | int] = []
    while item is not None:
        state, callers = item
        said += network.way(state)
        item = callers.best
    return said
