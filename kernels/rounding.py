"""How many rows a matrix product must have, so that a row's result does not depend on how many.

With fewer, or with a number that is no multiple of it, libraries may take another path and add in
another order: what else is in a batch would show in a row's last bits.
"""

ROWS = 16
