"""A text of the fewest tokens, where the one of the fewest bytes takes more than there are.

States tell how many bytes are missing, and these bound the tokens. But a longer text may be spelled
in fewer: "ought" in one token, "zqj" in three. This looks, level by level, at what each next token
leads to; it gives up where that is too much to look at, as inside a free string.
"""

from collections import deque

from dlm.grammar.parse.meter import Meter
from dlm.grammar.parse.parser import Parser
from dlm.grammar.parse.state import State
from dlm.grammar.vocabulary import Vocabulary

_LOOKS = 50_000  # bytes that are read at most
_BYTES = 12  # that are read for a unit of work

Way = list[tuple[State, int]]  # tokens, each with the state that it is read at


class FewestTokens:
    """A search for a text of the fewest tokens, from the first state of a grammar to an end.

    Where work runs out in the middle, `Unfinished` is raised, and asking again goes on.
    """

    def __init__(self, parser: Parser, vocabulary: Vocabulary, meter: Meter, most: int):
        """At most `most` tokens are looked for."""
        self._parser, self._meter = parser, meter
        self._trie, self._longest = vocabulary.trie, vocabulary.longest
        self._left, self._looks = most, 0
        self._seen = {parser.start}
        self._level: deque[tuple[State, Way]] = deque()  # states to be looked at, and ways there
        self._next: list[tuple[State, Way]] = [(parser.start, [])]  # of one token more
        self._found: dict[State, int] = {}  # where tokens lead from the state that is looked at
        self._todo: list[tuple[State, int]] = []  # states within tokens, and nodes of the trie
        self._way: Way | None = None

    def way(self) -> Way:
        """The tokens of the text; empty if there is none, or none that is found soon."""
        while self._way is None:
            if self._todo:
                self._read()
            elif self._level:
                self._leave()
            elif self._left and self._next:
                self._level, self._next = deque(self._next), []
                self._left -= 1
                self._todo = [(self._level[0][0], 0)]
            else:
                self._way = []
        return self._way

    def _read(self) -> None:
        """Read one more byte of all tokens that begin alike."""
        trie, (at, node) = self._trie, self._todo[-1]
        if not node:
            named = sorted(self._parser.named(at))
            after = {self._parser.after(at, token, b""): token for token in named}
            self._found = {state: token for state, token in after.items() if state is not None}
        if self._looks >= _LOOKS:
            self._todo = []
            return
        count = trie.child_count(node)
        self._meter.spend(1)
        onward: list[tuple[State, int]] = []
        for byte, child in trie.each_child(node):
            behind = self._parser.behind(at, byte)
            if behind is not None:
                onward.append((behind, child))
        if trie.token_count[node]:
            self._found.setdefault(at, int(trie.tokens[trie.token_first[node]]))
        self._meter.add(count // _BYTES)  # afterwards: what one look learns the next one keeps
        self._looks += count
        self._todo.pop()
        self._todo += onward

    def _leave(self) -> None:
        """Note where the tokens lead, and go on with the next state of the level."""
        here, way = self._level.popleft()
        for at, token in self._found.items():
            if at.cost == 0:
                self._way = [*way, (here, token)]
                return
            if at in self._seen or at.cost is None or at.cost > self._left * self._longest:
                continue
            self._seen.add(at)
            self._next.append((at, [*way, (here, token)]))
        if self._level:
            self._todo = [(self._level[0][0], 0)]
