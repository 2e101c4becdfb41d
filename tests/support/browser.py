"""Headless Chromium, driven over a pipe by its DevTools protocol, which takes no package.

Elements are named by CSS selectors, and code that a page runs is JavaScript.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waiting import PATIENCE

NAMES = "chromium", "chromium-browser", "google-chrome"
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
PHONE = 640  # pixels: narrower screens are those of phones
PLACE = """import fcntl, os, sys
ends = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
os.dup2(ends[0], 3), os.dup2(ends[1], 4)  # where the browser looks for them
os.execv(sys.argv[3], sys.argv[3:])"""
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "Home": 36, "End": 35, " ": 32, "ArrowRight": 39}


def chromium() -> str | None:
    """Return the path of a Chromium; None: there is none on the PATH."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def opened(program: str, profile: Path) -> Iterator["Browser"]:
    """Start a browser whose files are in the folder `profile`, and end it."""
    (reads, asks), (hears, tells) = os.pipe(), os.pipe()
    flags = [*FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
    process = subprocess.Popen(
        [sys.executable, "-c", PLACE, str(reads), str(tells), program, *flags],
        pass_fds=(reads, tells),
        stderr=subprocess.DEVNULL,
    )
    os.close(reads)
    os.close(tells)
    try:
        with os.fdopen(asks, "wb", buffering=0) as to, os.fdopen(hears, "rb", buffering=0) as back:
            yield Browser(to, back)
    finally:
        process.kill()
        process.wait()


class Browser:
    """Connection to a browser: calls, and the events that came meanwhile."""

    def __init__(self, to: Any, back: Any):
        self._to, self._back = to, back
        self._count, self._buffer = 0, b""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Return the result of a call of the protocol. Raises `RuntimeError` for an error."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        self._to.write(json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = self._back.read(1 << 20)
            if not piece:
                raise RuntimeError("the browser has ended")
            self._buffer += piece
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def page(self, url: str, width: int, height: int, dark: bool = False) -> "Page":
        """Open a page on a screen of this size, and return it when it has loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.resize(width, height, dark)
        page.call("Page.navigate", url=url)
        page.until("document.readyState === 'complete'")
        return page


class Page:
    """One page of a browser."""

    def __init__(self, browser: Browser, session: str):
        self._browser, self._session = browser, session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def resize(self, width: int, height: int, dark: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < PHONE}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, code: str) -> Any:
        """Return the value of an expression, after it if it is a promise. Raises `RuntimeError`."""
        result = self.call(
            "Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(f"{code}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, code: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + PATIENCE
        while not self.run(f"Boolean({code})"):
            assert time.monotonic() < end, f"never true: {code}"
            time.sleep(0.05)

    def text(self, selector: str) -> str:
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def focus(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")

    def fill(self, selector: str, words: str) -> None:
        """Replace the text of a control, as typing does."""
        self.focus(selector)
        self.run("document.activeElement.select()")
        self.call("Input.insertText", text=words)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a list, as a person does."""
        self.run(
            f"(one => {{ one.value = {json.dumps(value)}; "
            "for (const kind of ['input', 'change']) "
            "one.dispatchEvent(new Event(kind, {bubbles: true})); "
            f"}})(document.querySelector({json.dumps(selector)}))"
        )

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, key: str, modifiers: int = 0) -> None:
        """Press a key where the focus is; 2 as `modifiers` is Ctrl, 8 is Shift."""
        down = {"key": key, "code": "Space" if key == " " else key, "modifiers": modifiers}
        down["windowsVirtualKeyCode"] = KEYS[key]
        text = {"Enter": "\r", " ": " "}.get(key)
        self.call(
            "Input.dispatchKeyEvent", type="keyDown", **down, **({"text": text} if text else {})
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", **down)

    def picture(self, file: Path, whole: bool = False) -> None:
        """Write a PNG of what the screen shows, or of the whole page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))

    @property
    def problems(self) -> list[str]:
        """Problems that the page has met: exceptions, refusals of its policy, failed loads."""
        self.run("0")  # events before this have arrived
        found = list[str]()
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            details = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(details["exceptionDetails"].get("exception", details)))
            if event["method"] == "Log.entryAdded" and details["entry"]["level"] == "error":
                found.append(details["entry"]["text"])
        return found

    @property
    def addresses(self) -> set[str]:
        """Addresses that the page has asked for something."""
        self.run("0")
        return {
            event["params"]["request"]["url"]
            for event in self._browser.events
            if event.get("sessionId") == self._session
            and event["method"] == "Network.requestWillBeSent"
        }
