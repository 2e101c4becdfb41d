"""Parsing: a grammar's states, the tokens each of them allows, and its completions.

Names are imported at their first use: a network needs neither numpy nor torch.
"""

from dlm.grammar.lazy import homes, lazily

__getattr__ = lazily(
    __name__,
    homes(
        {
            "compiled": "Compiled",
            "earley": "Parser",
            "keys": "Keys",
            "left_to_right": "LeftToRight",
            "lengths": "Lengths",
            "matcher": "Matcher",
            "network": "Network scanner_of",
            "remainders": "NEVER",
            "scanner": "LiteralScanner Scanner lengths_of",
            "states": "StackNode State",
            "terminal_tokens": "Terminals",
        }
    ),
)
