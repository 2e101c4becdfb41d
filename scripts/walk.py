"""Walk through random grammars within tight budgets, and count the guarantees that break.

    python scripts/walk.py --walks 20000 --seed 1

Each case is a random JSON schema, tool, EBNF or Lark grammar over a random vocabulary. Its walks
take any allowed token, with one of ten wishes, by a matcher, left to right or in canvases, within
the least budget and 1, 7 and 30 tokens more. A fault is an answer that has no next token, does not
end within its budget, or is invalid. Each is printed with what repeats it.
"""

import argparse
import json
import sys
from collections import Counter
from random import Random

from measure.made_up import case_of
from measure.options import MeasureParser
from measure.report import print_table
from measure.walks import walks_of

from dlm.grammar import GrammarError

_PER_CASE = 8  # walks of one case: a vocabulary and a grammar take longer than a walk


def main() -> None:
    args = arguments()
    walks, faults, refused = walked(args.walks, args.seed)
    if args.json:
        rows = [{"form": f, "way": w, "walks": n} for (f, w), n in sorted(walks.items())]
        print(json.dumps({"rows": rows, "faults": faults, "refused": refused}))
    else:
        cells = [[form, way, str(count)] for (form, way), count in sorted(walks.items())]
        print_table(["form", "way", "walks"], [*cells, ["all", "all", str(walks.total())]])
        print(f"{len(faults)} faults; {refused} cases without a grammar or a short text")
        for fault in faults:
            print(fault)
    sys.exit(bool(faults))


def arguments() -> argparse.Namespace:
    parser = MeasureParser(__doc__, "seed", "json")
    parser.add_count("--walks", 1000, "The number of walks.")
    return parser.parsed()


def walked(most: int, seed: int) -> tuple[Counter[tuple[str, str]], list[str], int]:
    """Return the walks by form and way, the faults, and the number of cases that have no walk."""
    walks, faults, refused, number = Counter[tuple[str, str]](), list[str](), 0, seed * most
    while (left := most - walks.total()) > 0:
        rng = Random(number)
        try:
            case = case_of(rng)
            for way, about, fault in walks_of(case, rng, min(left, _PER_CASE)):
                walks[case.form, way] += 1
                if fault is not None:
                    faults.append(f"case {number}, {case.spec}: {about}: {fault}")
        except GrammarError:
            refused += 1
        number += 1
    return walks, faults, refused


if __name__ == "__main__":
    main()
