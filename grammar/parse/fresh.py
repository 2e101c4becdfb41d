"""Whether an object can get a key that it does not have: those of three letters, or dates, run out.

A key that is there already is refused where it ends. Where nothing but its end could follow, that
is too late.
"""

from dlm.grammar.parse.keys import Keys
from dlm.grammar.parse.meter import Meter
from dlm.grammar.parse.parser import Parser
from dlm.grammar.parse.state import State

_QUOTE, _BACKSLASH = b'"\\'


def leaves_a_key(parser: Parser, state: State, keys: Keys, meter: Meter) -> bool:
    """At `state`, the key that is being read, or has to come next, may become a new one."""
    if keys.key is not None and b"\\" in keys.key:
        return not keys.objects[-1]  # what it spells is known at its end alone
    rivals = keys.rivals
    if not rivals:
        return True
    if keys.key is not None:
        return _differs(parser, state, rivals, meter)
    begun = parser.behind(state, _QUOTE)
    return begun is None or _differs(parser, begun, rivals, meter)


def _differs(parser: Parser, state: State, rivals: list[bytes], meter: Meter) -> bool:
    """Something can follow, to the closing quote and with it, that none of `rivals` is.

    Without escapes: they spell what is there as well. Looks no further than `rivals` go.
    """
    waiting = [(state, rivals)]
    while waiting:
        at, rivals = waiting.pop()
        meter.add(1 + len(rivals) // 16)
        for low, high in parser.ranges(at):
            for byte in range(low, high + 1):
                onward = parser.behind(at, byte) if byte != _BACKSLASH else None
                if onward is None or onward.cost is None:
                    continue
                same = [rest[1:] for rest in rivals if rest[:1] == bytes([byte])]
                if not same:
                    return True
                if byte != _QUOTE:
                    waiting.append((onward, same))
    return False
