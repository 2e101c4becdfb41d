"""Check the server's page in a real browser.

    python scripts/check_page.py --out runs/page

Starts `scripts/serve.py` with the built-in model on a free port, and a headless Chromium found on
the PATH, which uses the page with the keyboard alone: on a wide and on a narrow screen, light and
dark. The answer under the constraint must be JSON with all keys of its schema, nothing may move
while the canvases change, a replay shows them again, errors must be shown in words beside the
control that they are about, and the code of the request must follow the form. Screenshots, of a
canvas in the middle and of the end, go to the folder `--out`. `make test` does not run this. Exit
codes: 0 the page passes, 1 it does not, with a message, 2 Playwright or Chromium is missing.
"""

import json
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measure.server import served

from dlm.cli.command_line import CommandParser, fail

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SCREENS = {"phone": (390, 844), "wide": (1280, 900)}  # pixels
NARROWEST = 360  # pixels of the narrowest screen on which everything must be readable
SLOW = 0.25  # seconds between two chunks, so that states in between can be seen
WANTED = {"invoice_id", "customer", "total", "paid"}  # of the page's first example
SETTLED = "() => [...document.querySelectorAll('section')].every(s => s.dataset.state === '{}')"
FORGET = "() => document.querySelectorAll('section').forEach(s => s.dataset.state = 'empty')"
HISTORY = """() => {
  window.states = [];
  const note = list => list.forEach(one => one.addedNodes.forEach(n => states.push(n.textContent)));
  new MutationObserver(note).observe(document.querySelector(".state"), {childList: true});
}"""
SHIFTS = """
  window.shift = 0;
  new PerformanceObserver(list => list.getEntries().forEach(one => window.shift += one.value))
    .observe({type: "layout-shift", buffered: true});
"""
FOCUSED = """() => {
  const one = document.activeElement, style = getComputedStyle(one);
  const name = one.id || one.className || one.tagName;
  return [name, style.outlineStyle !== "none", one === document.body];
}"""
OPEN = "() => document.querySelectorAll('details').forEach(one => one.open = true)"
UNNAMED = """() => [...document.querySelectorAll("input, select, textarea, button, [tabindex]")]
  .filter(one => !one.labels?.length && !one.ariaLabel && !one.textContent.trim())
  .map(one => one.outerHTML)"""
TOO_WIDE = "() => document.documentElement.scrollWidth > document.documentElement.clientWidth"


class WrongError(Exception):
    """A fault of the page, described in words."""


def main() -> None:
    parser = CommandParser(__doc__)
    purpose = "The folder of the screenshots."
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=purpose)
    purpose = "The most seconds that an answer may take."
    parser.add_argument("--seconds", type=float, default=120.0, metavar="S", help=purpose)
    args = parser.parse_args()
    playwright, chromium = needed()
    args.out.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = "--policy", "all", "--log-level", "error", "--shutdown-timeout", "0"
    try:
        with served(port, *flags), playwright.sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium)
            check(browser, f"http://127.0.0.1:{port}/", args.out, args.seconds * 1000)
            browser.close()
    except (WrongError, playwright.Error) as error:
        fail(str(error), 1)
    print(f"the page passes; {len(list(args.out.glob('*.png')))} screenshots are in {args.out}")


def needed() -> tuple[Any, str]:
    """Return Playwright's module and Chromium's path."""
    chromium = next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None:
        fail(f"none of {', '.join(BROWSERS)} is on the PATH: install Debian's package chromium")
    try:
        from playwright import sync_api  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        fail(f"{error} for {sys.executable}: pip install playwright")
    return sync_api, chromium


def check(browser: Any, url: str, out: Path, patience: float) -> None:
    """Check everything, with at most `patience` milliseconds for each answer."""
    for screen, size in SCREENS.items():
        for scheme in ("light", "dark"):
            with opened(browser, url, patience, size, color_scheme=scheme) as page:
                check_answer(page, out / f"{screen}-{scheme}")
    with opened(browser, url, patience, (NARROWEST, 740), reduced_motion="reduce") as page:
        check_keyboard(page)
        check_motion(page)
        check_tools(page)
        check_code(page)
        check_examples(page)
        check_errors(page, out / "refused")
    with opened(browser, url, patience, (NARROWEST, 740)) as page:
        check_stop(page)


@contextmanager
def opened(
    browser: Any, url: str, patience: float, size: tuple[int, int], **media: str
) -> Iterator[Any]:
    """Open the page on a screen of `size`. Raises `WrongError` for faults that show at its end."""
    width, height = size
    context = browser.new_context(viewport={"width": width, "height": height}, **media)
    page = context.new_page()
    page.set_default_timeout(patience)
    page.add_init_script(SHIFTS)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda m: problems.append(m.text) if "Content Security" in m.text else None)
    page.on("request", lambda r: None if r.url.startswith(url) else problems.append(r.url))
    page.goto(url)
    yield page
    expect(not problems, f"at {width} pixels the page had problems: {problems}")
    expect(not page.evaluate(TOO_WIDE), f"at {width} pixels the page has to be scrolled sideways")
    context.close()


def check_answer(page: Any, name: Path) -> None:
    """Check that both streams end and that the constraint's promises hold."""
    slowed(page)
    page.focus("#prompt")
    page.evaluate("() => window.shift = 0")
    page.keyboard.press("Enter")
    page.wait_for_selector("section:first-child .canvas .accepted")
    page.screenshot(path=f"{name}-running.png", full_page=True)
    until(page, "done")
    shift = page.evaluate("() => window.shift")
    expect(shift == 0, f"the layout moved while the canvases changed, by {shift:.4f}")
    text = page.locator("section:first-child .text").inner_text()
    try:
        found = set(json.loads(text))
    except ValueError as error:
        raise WrongError(f"the answer under the constraint is no JSON ({error}): {text}") from error
    expect(found == WANTED, f"the answer has the properties {sorted(found)}")
    expect("\n" in text, "the answer is not formatted")
    for number in ("passes", "tokens", "rate", "seconds", "repairs"):
        shown = page.locator(f"section:first-child [data-number={number}]").inner_text()
        expect(shown.replace(".", "").isdigit(), f"{number} is shown as {shown!r}")
    valid = page.locator("section:first-child [data-number=valid]").inner_text()
    expect(valid == "yes", f"an answer that fits its schema is marked as {valid!r}")
    free = page.locator("section:nth-child(2) [data-number=valid]").inner_text()
    expect(free == "no", f"the answer without the constraint fits the schema: {free!r}")
    check_replay(page)
    page.screenshot(path=f"{name}.png", full_page=True)


def check_replay(page: Any) -> None:
    """Check that the pictures of both canvases can be shown again, one by one."""
    canvas = page.locator("section:first-child .canvas")
    final = canvas.inner_text()
    expect("·" not in final, f"the canvas of a whole answer shows empty positions: {final!r}")
    page.focus("#frame")
    page.keyboard.press("Home")
    expect(canvas.locator(".noise, .accepted, .pinned").count() > 0, "no first picture is shown")
    page.keyboard.press("End")
    expect(canvas.inner_text() == final, "the end of the replay is not the whole answer")
    page.focus("#play")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('#play').textContent === 'Pause'")
    page.wait_for_function("() => document.querySelector('#play').textContent === 'Replay'")
    expect(canvas.inner_text() == final, "a replay does not end with the whole answer")


def until(page: Any, state: str) -> None:
    """Wait until both streams are in this state."""
    try:
        page.wait_for_function(SETTLED.format(state))
    except Exception as error:  # its class is Playwright's, which need not be installed
        shown = page.locator("section .state").all_inner_texts()
        raise WrongError(f"the streams are not {state}: the page shows {shown}") from error


def slowed(page: Any) -> None:
    """Deliver chunks one by one from now on, so that states in between can be seen."""
    page.evaluate(
        """milliseconds => {
          const ask = window.fetch;
          const transform = async (chunk, out) => {
            await new Promise(done => setTimeout(done, milliseconds));
            out.enqueue(chunk);
          };
          window.fetch = async (...asked) => {
            const answer = await ask(...asked);
            return new Response(answer.body.pipeThrough(new TransformStream({transform})), answer);
          };
        }""",
        SLOW * 1000,
    )


def check_keyboard(page: Any) -> None:
    """Check that Tab reaches everything and that the focus can be seen."""
    page.evaluate(OPEN)
    unnamed = page.evaluate(UNNAMED)
    expect(not unnamed, f"without a name for screen readers: {unnamed}")
    reached: list[str] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        name, seen, over = page.evaluate(FOCUSED)
        if over:
            break
        expect(seen, f"the focus on {name} cannot be seen")
        reached.append(name)
    controls = "example prompt go SUMMARY kind constraint SUMMARY add choice SUMMARY seed most"
    wanted = [*controls.split(), "temperature", "effort", "model", "key"]
    expect(reached[: len(wanted)] == wanted, f"Tab reaches {reached}")
    for name in ("stream", "copy", "snippet"):
        expect(name in reached, f"Tab does not reach {name}: {reached}")
    expect(reached.count("canvas") == reached.count("said") == 2, f"Tab reaches {reached}")


def check_tools(page: Any) -> None:
    """Check that a tool can be written from the keyboard, and that its rows become a schema."""
    page.focus("#add")
    page.keyboard.press("Enter")
    page.keyboard.type("find")
    page.focus(".more")
    page.keyboard.press("Enter")
    page.keyboard.type("word")
    unnamed = page.evaluate(UNNAMED)
    expect(not unnamed, f"without a name for screen readers: {unnamed}")
    page.focus(".raw")
    page.keyboard.press("Space")
    schema = json.loads(page.locator(".schema textarea").input_value())
    wanted = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
    expect(schema == wanted, f"the rows become {schema}")
    shown = page.locator("#snippet").inner_text()
    expect('"name": "find"' in shown, f"the code has no tool: {shown}")
    page.focus(".remove")
    page.keyboard.press("Enter")
    expect(page.locator(".tool").count() == 0, "a removed tool stays")


def check_code(page: Any) -> None:
    """Check that there is code of every form in every language, and that it can be copied."""
    seen: set[str] = set()
    for form in page.locator("[name=forms]").all():
        form.check()
        for language in page.locator("[name=languages]").all():
            language.check()
            seen.add(page.locator("#snippet").inner_text())
    expect(len(seen) == 9 and "" not in seen, f"there are {len(seen)} pieces of code, not 9")
    page.locator("[name=languages]").first.check()
    page.locator("[name=forms]").first.check()
    page.focus("#copy")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('#copied').textContent !== ''")


def check_motion(page: Any) -> None:
    moves = page.evaluate(
        """() => {
          const one = document.querySelector(".canvas").appendChild(document.createElement("span"));
          return getComputedStyle(one).transitionDuration;
        }"""
    )
    expect(moves == "0s", f"colours fade in {moves} although motion is to be reduced")


def check_stop(page: Any) -> None:
    """Check that Ctrl+Enter starts, Escape stops, and an earlier request disturbs no later one."""
    page.evaluate(OPEN)
    slowed(page)
    page.focus("#constraint")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("[data-state=running]")
    page.keyboard.press("Escape")
    until(page, "stopped")
    expect(page.locator("#stop").is_disabled(), "Stop can be pressed although nothing runs")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("[data-state=running]")
    page.evaluate(HISTORY)
    page.keyboard.press("Control+Enter")
    until(page, "done")
    states = page.evaluate("() => window.states")
    first = [words for words in states if words == "stopped" or words.startswith("waiting")]
    expect(first == ["stopped", "waiting for the first pass"], f"after a restart it shows {states}")


def check_examples(page: Any) -> None:
    """Check that every example of the page runs from the keyboard and its answer is valid."""
    count = page.locator("#example option").count()
    expect(count >= 4, f"the page has {count} examples")
    for index in range(count):
        page.focus("#example")
        page.keyboard.press("Home")
        for _ in range(index):
            page.keyboard.press("ArrowDown")
        page.evaluate(FORGET)
        page.keyboard.press("Control+Enter")
        until(page, "done")
        name = page.locator("#example").input_value()
        valid = page.locator("section:first-child [data-number=valid]").inner_text()
        text = page.locator("section:first-child .said").inner_text()
        expect(valid == "yes", f"the answer to {name} is marked as {valid!r}: {text}")


def check_errors(page: Any, name: Path) -> None:
    """Check that errors are shown in words, those of the page and those of the server."""
    page.select_option("#example", index=0)
    page.fill("#constraint", "{")
    page.keyboard.press("Control+Enter")
    problem = page.locator("#problem").inner_text()
    expect(problem.startswith("The schema is not JSON"), f"a broken schema shows {problem!r}")
    page.fill("#constraint", '{"type": "nothing"}')
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("section:first-child[data-state=failed]")
    text = page.locator("section:first-child .text").inner_text()
    expect("(400)" in text and "nothing" in text, f"for an invalid schema it shows {text!r}")
    problem = page.locator("#constraint[aria-invalid=true]").count()
    expect(problem == 1, "a refused schema is not marked")
    page.screenshot(path=f"{name}.png", full_page=True)
    page.context.set_offline(True)
    page.evaluate(FORGET)
    page.keyboard.press("Control+Enter")
    until(page, "failed")
    text = page.locator("#summary").inner_text()
    expect("cannot be reached" in text, f"without a server it shows {text!r}")


def expect(true: bool, otherwise: str) -> None:
    if not true:
        raise WrongError(otherwise)


if __name__ == "__main__":
    main()
