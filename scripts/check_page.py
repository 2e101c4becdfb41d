"""The page of a server, checked in a real browser.

    python scripts/check_page.py --out runs/page

Starts `scripts/serve.py` with the built-in model on a free port, and a headless Chromium found on
the PATH, which asks on the page as somebody without a mouse does: on a wide and on a narrow screen,
light and dark. The answer under the constraint must be JSON with all that its schema wants, nothing
may move while the canvases change, and errors must be told in words. Screenshots, of a canvas in
the middle and of the end, go to the folder `--out`. `make test` does not run this. Exit codes: 0
all is well, 1 something is wrong, which is told, 2 Playwright or Chromium is missing.
"""

import argparse
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dlm.cli.command_line import fail

SERVE = Path(__file__).with_name("serve.py")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SCREENS = {"phone": (390, 844), "wide": (1280, 900)}  # pixels
NARROWEST = 360  # pixels across in which all must be readable
SLOW = 0.25  # seconds between two chunks where a state in between is to be seen
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
UNNAMED = """() => [...document.querySelectorAll("input, select, textarea, button, [tabindex]")]
  .filter(one => !one.labels?.length && !one.ariaLabel && !one.textContent.trim())
  .map(one => one.outerHTML)"""
TOO_WIDE = "() => document.documentElement.scrollWidth > document.documentElement.clientWidth"


class WrongError(Exception):
    """What is wrong with the page, in words."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for screenshots")
    parser.add_argument("--seconds", type=float, default=120.0, metavar="S", help="for an answer")
    args = parser.parse_args()
    playwright, chromium = needed()
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        with served() as url, playwright.sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium)
            check(browser, url, args.out, args.seconds * 1000)
            browser.close()
    except (WrongError, playwright.Error) as error:
        fail(str(error), 1)
    print(f"the page is well; {len(list(args.out.glob('*.png')))} screenshots are in {args.out}")


def needed() -> tuple[Any, str]:
    """Playwright's module and Chromium's path."""
    chromium = next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None:
        fail(f"none of {', '.join(BROWSERS)} is on the PATH: install Debian's package chromium")
    try:
        from playwright import sync_api  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        fail(f"{error} for {sys.executable}: pip install playwright")
    return sync_api, chromium


@contextmanager
def served() -> Iterator[str]:
    """The address of a server that is well."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    flags = ["--port", str(port), "--policy", "all", "--log-level", "error"]
    server = subprocess.Popen([sys.executable, str(SERVE), *flags])
    try:
        until_well(f"http://127.0.0.1:{port}", server)
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.kill()  # what the browser gave up need not finish
        server.wait(60)


def until_well(url: str, server: "subprocess.Popen[bytes]", seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while server.poll() is None and time.monotonic() < end:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise WrongError(f"scripts/serve.py ended, or did not come up within {seconds:g} seconds")


def check(browser: Any, url: str, out: Path, patience: float) -> None:
    """Everything, with at most `patience` milliseconds for each answer."""
    for screen, size in SCREENS.items():
        for scheme in ("light", "dark"):
            with opened(browser, url, patience, size, color_scheme=scheme) as page:
                check_answer(page, out / f"{screen}-{scheme}")
    with opened(browser, url, patience, (NARROWEST, 740), reduced_motion="reduce") as page:
        check_keyboard(page)
        check_motion(page)
        check_examples(page)
        check_errors(page, out / "refused")
    with opened(browser, url, patience, (NARROWEST, 740)) as page:
        check_stop(page)


@contextmanager
def opened(
    browser: Any, url: str, patience: float, size: tuple[int, int], **media: str
) -> Iterator[Any]:
    """The page on a screen of `size`. Raises what its scripts, its policy or its layout break."""
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
    """Both streams come to their ends, and what the constraint promises is there."""
    slowed(page)
    page.focus("#prompt")
    page.evaluate("() => window.shift = 0")
    page.keyboard.press("Enter")
    page.wait_for_selector("section:first-child .canvas .accepted")
    page.screenshot(path=f"{name}-running.png", full_page=True)
    until(page, "done")
    shift = page.evaluate("() => window.shift")
    expect(shift == 0, f"the layout moved while the canvases changed, by {shift:.4f}")
    said = page.locator("section:first-child .text").inner_text()
    try:
        found = set(json.loads(said))
    except ValueError as error:
        raise WrongError(f"the answer under the constraint is no JSON ({error}): {said}") from error
    expect(found == WANTED, f"the answer has the properties {sorted(found)}")
    expect("\n" in said, "the answer is not formatted")
    for number in ("passes", "tokens", "rate", "seconds", "repairs"):
        shown = page.locator(f"section:first-child [data-number={number}]").inner_text()
        expect(shown.replace(".", "").isdigit(), f"{number} is shown as {shown!r}")
    valid = page.locator("section:first-child [data-number=valid]").inner_text()
    expect(valid == "yes", f"of valid JSON the page says {valid!r}")
    page.screenshot(path=f"{name}.png", full_page=True)


def until(page: Any, state: str) -> None:
    """Wait until both streams are in this state."""
    try:
        page.wait_for_function(SETTLED.format(state))
    except Exception as error:  # a class that is known only where Playwright is there
        shown = page.locator("section .state").all_inner_texts()
        raise WrongError(f"the streams are not {state}: the page shows {shown}") from error


def slowed(page: Any) -> None:
    """From now on chunks come one by one, so that states in between can be seen."""
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
    """Tab comes to everything, and the focus can be seen."""
    unnamed = page.evaluate(UNNAMED)
    expect(not unnamed, f"without a name for those who cannot see them: {unnamed}")
    came: list[str] = []
    for _ in range(40):
        page.keyboard.press("Tab")
        name, seen, over = page.evaluate(FOCUSED)
        if over:
            break
        expect(seen, f"the focus on {name} cannot be seen")
        came.append(name)
    controls = ["example", "kind", "prompt", "constraint", "seed", "most", "key", "think", "go"]
    expect(came[:9] == controls, f"Tab comes to {came}")
    expect(came.count("canvas") == came.count("said") == 2, f"Tab comes to {came}")


def check_motion(page: Any) -> None:
    moves = page.evaluate(
        """() => {
          const one = document.querySelector(".canvas").appendChild(document.createElement("span"));
          return getComputedStyle(one).transitionDuration;
        }"""
    )
    expect(moves == "0s", f"colours fade in {moves} although motion is to be reduced")


def check_stop(page: Any) -> None:
    """Ctrl+Enter asks, Escape stops, and what was asked before disturbs nothing."""
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
    expect(first == ["stopped", "waiting for the first pass"], f"asked anew it went on: {states}")


def check_examples(page: Any) -> None:
    """All that the page offers can be asked for, from the keyboard, and comes out valid."""
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
        said = page.locator("section:first-child .text").inner_text()
        expect(valid == "yes", f"of the answer to {name} the page says {valid!r}: {said}")


def check_errors(page: Any, name: Path) -> None:
    """What is wrong is told in words, before the server is asked and after."""
    page.select_option("#example", index=0)
    page.fill("#constraint", "{")
    page.keyboard.press("Control+Enter")
    problem = page.locator("#problem").inner_text()
    expect(problem.startswith("The schema is not JSON"), f"of a broken schema it says {problem!r}")
    page.fill("#constraint", '{"type": "nothing"}')
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("section:first-child[data-state=failed]")
    said = page.locator("section:first-child .text").inner_text()
    expect("(400)" in said and "nothing" in said, f"of a schema that is none it says {said!r}")
    page.screenshot(path=f"{name}.png", full_page=True)
    page.context.set_offline(True)
    page.evaluate(FORGET)
    page.keyboard.press("Control+Enter")
    until(page, "failed")
    said = page.locator("#summary").inner_text()
    expect("cannot be reached" in said, f"where no server is it says {said!r}")


def expect(true: bool, otherwise: str) -> None:
    if not true:
        raise WrongError(otherwise)


if __name__ == "__main__":
    main()
