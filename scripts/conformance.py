"""Measure how JSON Schema is enforced, keyword by keyword, with the official test suite.

    python scripts/conformance.py --suite tests/conformance/json-schema-test-suite-2020-12.jsonl.xz

A line of the suite is one group: `{"file", "description", "schema", "tests": [{"description",
"data", "valid"}]}`. Each instance is spelled as JSON, and the grammar of its schema, without
implied types, accepts it or not. Formats are enforced in the suite's files about formats.
"""

import json
import re
from collections.abc import Callable, Iterator
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any

from measure.options import MeasureParser
from measure.schemas import of_bytes, read_schemas

from dlm.grammar import JsonSchema, Matcher
from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.parse import Terminals
from dlm.grammar.parse.compiled import Compiled
from dlm.grammar.parse.network import Network
from dlm.grammar.schema import MOST_CHARACTERS

CLOSED = "closed objects"
ORDER = "property order"
SPELLING = "an integer's spelling"
ROUNDING = "a number that no double is, next to a bound"
READERS = "a pattern that Python's `re` reads otherwise"
_BYTES = of_bytes()
_MOST_ORDERS = 24  # orders of the keys of one instance that are tried
_DRAFTS = {
    "4": "http://json-schema.org/draft-04/schema#",
    "6": "http://json-schema.org/draft-06/schema#",
    "7": "http://json-schema.org/draft-07/schema#",
    "2019-09": "https://json-schema.org/draft/2019-09/schema",
    "2020-12": "https://json-schema.org/draft/2020-12/schema",
}


def grammar_of(schema: Any, formats: bool, closed: bool = True) -> Callable[[str], bool]:
    """Return a function that tells whether the grammar of a schema accepts a text."""
    spec = JsonSchema(
        schema,
        implied_types=False,
        formats=formats,
        additional_properties="closed" if closed else "schema",
    )
    terminals = Terminals(_BYTES.trie, len(_BYTES))
    compiled = Compiled(Network(spec.rules()), _BYTES, terminals)

    def accepts(text: str) -> bool:
        tokens = [*_BYTES.encode(text), *_BYTES.stops]
        return Matcher(compiled).accept_all(tokens) == len(tokens)

    return accepts


def row(group: dict[str, Any], draft: str) -> dict[str, Any]:
    """Return the outcome of one group."""
    schema, formats = group["schema"], group["file"].startswith("optional/format")
    if isinstance(schema, dict):
        schema = {"$schema": draft, **schema}
    found = {"file": group["file"], "group": group["description"]}
    found |= {"valid": sum(test["valid"] for test in group["tests"])}
    found |= {"invalid": len(group["tests"]) - found["valid"]}
    try:
        accepts = grammar_of(schema, formats)
    except InvalidGrammarError as error:
        return {**found, "refused": str(error), "valid_rejected": [], "invalid_accepted": []}
    rejected, let_through = [], []
    for test in group["tests"]:
        accepted = accepts(_text(test["data"]))
        if test["valid"] and not accepted:
            reason = why_rejected(schema, formats, accepts, test["data"])
            rejected.append({"test": test["description"], "reason": reason})
        elif accepted and not test["valid"]:
            let_through.append({"test": test["description"]})
    return {**found, "refused": None, "valid_rejected": rejected, "invalid_accepted": let_through}


def why_rejected(
    schema: Any, formats: bool, accepts: Callable[[str], bool], value: Any
) -> str | None:
    """Return the documented reasons for which a valid value is rejected, None if there are none.

    A reason counts if the value is accepted without it.
    """
    opened = grammar_of(schema, formats, closed=False)
    for reasons, reads, variants in (
        ((SPELLING,), accepts, [_plain(value)]),
        ((ORDER,), accepts, _orders(value)),
        ((CLOSED,), opened, [value]),
        ((CLOSED, ORDER), opened, _orders(value)),
        ((CLOSED, ORDER, SPELLING), opened, _orders(_plain(value))),
    ):
        if any(reads(_text(variant)) for variant in variants):
            return ", ".join(reasons)
    if isinstance(value, str) and isinstance(schema, dict) and "pattern" in schema:
        return None if re.search(schema["pattern"], value) else READERS
    if not isinstance(value, int | float):
        return None
    if abs(value) >= 10**MOST_CHARACTERS:
        return SPELLING
    return None if float(value) == value else ROUNDING


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Return the value with integers instead of floats without a fraction."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return int(value) if isinstance(value, float) and value == int(value) else value


def _orders(value: Any) -> Iterator[Any]:
    """Yield the value with the keys of its objects in other orders."""
    if isinstance(value, list):
        some = (list(islice(_orders(part), _MOST_ORDERS)) for part in value)
        yield from map(list, islice(product(*some), _MOST_ORDERS))
    elif isinstance(value, dict):
        parts = {key: list(islice(_orders(part), _MOST_ORDERS)) for key, part in value.items()}
        for keys in islice(permutations(value), _MOST_ORDERS):
            for chosen in islice(product(*(parts[key] for key in keys)), _MOST_ORDERS):
                yield dict(zip(keys, chosen, strict=True))
    else:
        yield value


def report(suite: Path, draft: str) -> dict[str, Any]:
    """Return the counts of a suite, and a row for each of its groups."""
    rows = [row(group, draft) for group in read_schemas(suite)]
    required = [row for row in rows if not row["file"].startswith("optional/")]
    return {
        "groups": len(required),
        "compiled": sum(row["refused"] is None for row in required),
        "refused": sum(row["refused"] is not None for row in required),
        "valid_rejected": sum(len(row["valid_rejected"]) for row in required),
        "invalid_accepted": sum(len(row["invalid_accepted"]) for row in required),
        "rows": rows,
    }


def markdown(found: dict[str, Any]) -> str:
    """Return a table by keyword, and a list of all refusals and rejections with their reasons."""
    files = dict.fromkeys(row["file"] for row in found["rows"])
    lines = ["| tests of | groups | refused | valid rejected | invalid accepted |", "|-" * 5 + "|"]
    notes = []
    for file in files:
        rows = [row for row in found["rows"] if row["file"] == file]
        refused = [row for row in rows if row["refused"]]
        rejected = [one for row in rows for one in row["valid_rejected"]]
        let_through = [one for row in rows for one in row["invalid_accepted"]]
        valid = sum(row["valid"] for row in rows if not row["refused"])
        invalid = sum(row["invalid"] for row in rows if not row["refused"])
        lines.append(
            f"| {file} | {len(rows)} | {len(refused)} | {len(rejected)} of {valid} "
            f"| {len(let_through)} of {invalid} |"
        )
        notes += [f"- {file}, {row['group']}: refused. {row['refused']}" for row in refused]
        notes += [
            f"- {file}, {row['group']}, {one['test']}: rejected. {one['reason']}"
            for row in rows
            for one in row["valid_rejected"]
        ]
        notes += [
            f"- {file}, {row['group']}, {one['test']}: **accepted**"
            for row in rows
            for one in row["invalid_accepted"]
        ]
    head = (
        f"{found['compiled']} of {found['groups']} required groups compile; "
        f"{found['valid_rejected']} valid instances are rejected, "
        f"{found['invalid_accepted']} invalid ones accepted."
    )
    return "\n".join([head, "", *lines, "", *notes])


def main() -> None:
    parser = MeasureParser(__doc__, "json")
    add = parser.add_argument
    purpose = "The suite's groups, a .jsonl or .jsonl.xz file."
    add("--suite", type=Path, required=True, metavar="FILE", help=purpose)
    add("--draft", choices=_DRAFTS, default="2020-12", help="The draft of the suite.")
    add("--markdown", action="store_true", help="Print the tables of the documentation.")
    args = parser.parsed()
    found = report(args.suite, _DRAFTS[args.draft])
    if args.json:
        print(json.dumps(found, indent=1))
    elif args.markdown:
        print(markdown(found))
    else:
        print(markdown(found).partition("\n")[0])


if __name__ == "__main__":
    main()
