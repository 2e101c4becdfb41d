"""Parsing: a grammar's states, the tokens each of them allows, and its completions.

Names are imported at their first use: a network needs neither numpy nor torch.
"""

from dlm.grammar import homes, lazily

__getattr__ = lazily(
    __name__,
    homes(
        {
            "compiled": "Compiled",
            "earley": "Parser StackNode State",
            "keys": "Keys",
            "lengths": "Lengths",
            "matcher": "LeftToRight Matcher",
            "network": "Network scanner_of",
            "remainders": "NEVER",
            "scanner": "LiteralScanner Scanner",
            "state_masks": "Terminals",
        }
    ),
)
