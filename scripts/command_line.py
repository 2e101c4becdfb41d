"""How a command begins, and how it says that it cannot be followed: one line on stderr, and an exit
code. It imports nothing that takes long: a signal may come at once.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

_ENDS = {signal.SIGINT: ("interrupted", 130), signal.SIGTERM: ("terminated", 143)}


class Parser(argparse.ArgumentParser):
    """Options of a command: help with defaults, `--version`, and errors as one line."""

    def __init__(self, doc: str | None = None, **more: Any):
        """`doc` is the command's docstring: its first paragraph describes the command, the rest is
        shown after the options."""
        if doc is not None:
            description, _, epilog = doc.strip().partition("\n\n")
            more = {"description": description, "epilog": epilog, **more}
        super().__init__(formatter_class=_Help, add_help=False, **more)
        self.add_argument("-h", "--help", action="help", help="Show this help and exit.")
        self.add_argument("--version", action=_Version, help="Show the version of dlm and exit.")

    def error(self, message: str) -> NoReturn:
        fail(message)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help whose options end with their defaults."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        if any(action.default is none for none in (None, False, argparse.SUPPRESS)):
            return text
        if action.default in ("", []):
            return text
        return f"{text} Default: %(default)s."


class _Version(argparse.Action):
    """Prints the installed version, which is looked up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None):
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import version

        print(f"dlm {version('dlm')}")
        parser.exit()


def fail(message: str, code: int = 2) -> NoReturn:
    said = " ".join(message.split()).encode("utf-8", "backslashreplace").decode()
    print(f"{Path(sys.argv[0]).name}: {said}", file=sys.stderr)
    sys.exit(code)


def open_streams() -> None:
    """A standard stream that the caller has closed leads nowhere: else the next file that is opened
    would get its number, and what is said be written to it. Processes that are begun inherit it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(nowhere, True)
            setattr(sys, name, os.fdopen(nowhere, mode))


def stop_at(*numbers: signal.Signals) -> None:
    """From now on SIGINT or SIGTERM, whichever are named, end the process at once. One that the
    caller has told us to ignore stays ignored."""
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


def interruptible() -> None:
    """Everything is imported and loaded: SIGINT is a `KeyboardInterrupt` again."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _stop(number: int, _: Any) -> None:
    """Nothing is raised: torch does not survive that while it is imported."""
    said, code = _ENDS[signal.Signals(number)]
    restore = "\x1b[?25h\n" if os.isatty(2) else ""  # the cursor
    os.write(2, f"{restore}{Path(sys.argv[0]).name}: {said}\n".encode())
    os._exit(code)
