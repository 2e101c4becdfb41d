"""Index of the pages that store the keys and values of texts: requests that begin alike share them.

It is a trie over full pages of tokens: a node stands for all tokens from the beginning of a text to
the end of its page. Children are found by comparing tokens: no hash is trusted.
"""

from collections.abc import Mapping, Sequence


class PrefixNode:
    """Page of tokens after those of its parents, and the page of each pool that stores it."""

    __slots__ = ("children", "pages", "parent", "tokens")

    def __init__(self, parent: "PrefixNode | None", tokens: tuple[int, ...]):
        self.parent, self.tokens = parent, tokens
        self.children: dict[tuple[int, ...], PrefixNode] = {}
        self.pages: dict[str, int] = {}  # by pool; without pools whose page was reused


class PrefixIndex:
    """Index over pools of pages. `spans` has for each pool how many tokens before a position must
    be stored to continue from it; None: all."""

    def __init__(self, page: int, spans: Mapping[str, int | None]):
        self.root = PrefixNode(None, ())
        self._page, self._spans = page, spans
        self._nodes: dict[tuple[str, int], PrefixNode] = {}  # by pool and page

    def __contains__(self, place: tuple[str, int]) -> bool:
        """Whether a page of a pool stores a known text."""
        return place in self._nodes

    def add(
        self, parent: PrefixNode, tokens: Sequence[int], pages: Mapping[str, int]
    ) -> PrefixNode:
        """Return the node of `tokens` after `parent`. Pools that have no page for it yet get that
        of `pages`."""
        key = tuple(tokens)
        node = parent.children.get(key)
        if node is None:
            node = parent.children[key] = PrefixNode(parent, key)
        for pool, page in pages.items():
            if pool not in node.pages:
                node.pages[pool] = page
                self._nodes[pool, page] = node
        return node

    def forget(self, pool: str, page: int) -> None:
        """Remove a page that will store something else."""
        node = self._nodes.pop((pool, page))
        del node.pages[pool]
        while not (node.pages or node.children) and node.parent is not None:
            del node.parent.children[node.tokens]
            node = node.parent

    def find(self, tokens: Sequence[int]) -> list[PrefixNode]:
        """Return the nodes of the longest beginning of `tokens` from which one can continue."""
        node, found, best = self.root, [], 0
        stored = dict.fromkeys(self._spans, 0)  # adjacent pages before here
        for start in range(0, len(tokens) - self._page + 1, self._page):
            node = node.children.get(tuple(tokens[start : start + self._page]))
            if node is None:
                break
            found.append(node)
            end = start + self._page
            for pool in self._spans:
                stored[pool] = stored[pool] + 1 if pool in node.pages else 0
            if all(self._suffices(stored[pool], end, span) for pool, span in self._spans.items()):
                best = len(found)
        return found[:best]

    def _suffices(self, stored: int, end: int, span: int | None) -> bool:
        """Whether `stored` pages before position `end` are all that is needed of a pool."""
        first = 0 if span is None else max(0, end - span) // self._page
        return stored >= end // self._page - first
