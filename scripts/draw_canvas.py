"""Draw the canvases of one real answer, pass by pass, as an SVG picture.

    python scripts/draw_canvas.py --out docs/images/canvas.svg

Each row is a `Draft`: the tokens that would be committed after this pass. The prompt is that of
`make demo`, under `examples/invoice.json`, decoded in canvases by the built-in model.
"""

import json
from dataclasses import dataclass
from html import escape
from pathlib import Path

import dlm
from dlm.cli.command_line import CommandParser

ROOT = Path(__file__).parents[1]
PROMPT = (
    "Extract invoice_id, customer, total, paid as JSON. "
    "Invoice AK-4071 for Silver Robotics came to 218.50 euros and has been paid."
)
WIDTH, HEIGHT, GAP, LABEL = 7.4, 20, 3, 84  # pixels: a character, a row, between tokens, a label
STYLES = {  # fill, text
    "pinned": ("#2e7d32", "#ffffff"),
    "accepted": ("#90caf9", "#10233c"),
    "noised again": ("#eeeeee", "#333333"),
    "suspect": ("#fbe0dc", "#9c4a3c"),
    "committed": ("#c8e6c9", "#14361a"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CanvasRow:
    """A label, tokens with the names of their styles, and the position of the frontier."""

    label: str
    pieces: list[tuple[str, str]]
    frontier: int | None = None  # None: no position is suspect


def rows(engine: dlm.Engine, request: dlm.Request) -> list[CanvasRow]:
    """Return a row for each pass over a canvas, and one for each commit."""
    found: list[CanvasRow] = []
    for event in engine.stream(request):
        if isinstance(event, dlm.Draft):
            found.append(row(engine, event))
        elif isinstance(event, dlm.Committed):
            pieces = [(piece(engine, token), "committed") for token in event.tokens]
            found.append(CanvasRow(label="commit", pieces=pieces))
    return found


def row(engine: dlm.Engine, draft: dlm.Draft) -> CanvasRow:
    def style(position: int) -> str:
        if position < draft.pinned:
            return "pinned"
        if draft.accepted[position]:
            return "accepted"
        return "noised again" if position < draft.suspect else "suspect"

    pieces = [(piece(engine, token), style(i)) for i, token in enumerate(draft.tokens)]
    frontier = draft.suspect if draft.suspect < len(pieces) else None
    return CanvasRow(label=f"pass {draft.step}", pieces=pieces, frontier=frontier)


def piece(engine: dlm.Engine, token: int) -> str:
    """Return the text of a token, with a visible space; a control token is a dot."""
    if token in engine.vocabulary.control:
        return "·"
    return engine.vocabulary.text([token]).replace(" ", "␣").replace("\n", "⏎")


def svg(drawn: list[CanvasRow]) -> str:
    """Return the picture of all rows under a legend of the styles."""
    legend = CanvasRow(label="", pieces=[(name, name) for name in STYLES], frontier=3)
    lines, widest = [], 0.0
    for number, each in enumerate([legend, *drawn]):
        top = 8 + number * (HEIGHT + 6)
        lines += [_text(each.label, 8, top, "#333333")] if each.label else []
        left = float(LABEL)
        for position, (text, style) in enumerate(each.pieces):
            if position == each.frontier:
                line = f'x1="{left - 1.5:.1f}" x2="{left - 1.5:.1f}" y1="{top - 2}"'
                lines.append(f'<line {line} y2="{top + HEIGHT + 2}" stroke="#d32f2f"/>')
            fill, color = STYLES[style]
            width = len(text) * WIDTH + 4
            box = f'x="{left:.1f}" y="{top}" width="{width:.1f}" height="{HEIGHT}" rx="3"'
            lines += [f'<rect {box} fill="{fill}"/>', _text(text, left + 2, top, color)]
            left += width + GAP
        widest = max(widest, left)
    height = 12 + (len(drawn) + 1) * (HEIGHT + 6)
    size = f'viewBox="0 0 {widest + 8:.0f} {height}" font-family="monospace" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join(
        [head, '<rect width="100%" height="100%" fill="#ffffff"/>', *lines, "</svg>\n"]
    )


def _text(text: str, left: float, top: int, color: str) -> str:
    """Return a text that is as wide as its characters, whatever the font."""
    width = f'textLength="{len(text) * WIDTH:.1f}" lengthAdjust="spacingAndGlyphs"'
    return f'<text x="{left:.1f}" y="{top + 14}" fill="{color}" {width}>{escape(text)}</text>'


def main() -> None:
    parser = CommandParser(__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="The SVG file.")
    args = parser.parse_args()
    schema = json.loads((ROOT / "examples" / "invoice.json").read_text())
    request = dlm.Request(prompt=PROMPT, constraint=dlm.JsonSchema(schema), seed=0)
    engine = dlm.Engine.load(slots=1, decoding="canvas")
    try:
        args.out.write_text(svg(rows(engine, request)))
    finally:
        engine.close()


if __name__ == "__main__":
    main()
