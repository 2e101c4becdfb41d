"""The start of a command and its errors: one line on stderr, and an exit code.

It imports only what is quick to import: a signal may come at once.
"""

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

_ENDS = {signal.SIGINT: ("interrupted", 130), signal.SIGTERM: ("terminated", 143)}


class UsageError(Exception):
    """A command line that cannot be followed."""


class CommandParser(argparse.ArgumentParser):
    """Options of a command: help with defaults, `--version`, and errors as one line."""

    def __init__(self, doc: str | None = None, **options: Any):
        """Describe the command by its docstring `doc`; the first paragraph precedes the options."""
        if doc is not None:
            description, _, epilog = doc.strip().partition("\n\n")
            options = {"description": description, "epilog": epilog, **options}
        super().__init__(formatter_class=_Help, add_help=False, **options)
        self.add_argument("-h", "--help", action="help", help="Show this help and exit.")
        self.add_argument(
            "--version",
            action=_Version,
            help="Show the version of dlm, and what makes masks, and exit.",
        )

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
    """An option that prints the installed version, and whether masks are made in C.

    Both are looked up only then.
    """

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None):
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import version

        from dlm.grammar.native import load

        print(f"dlm {version('dlm')}, masks by {load()[1]}")
        parser.exit()


def numbers(text: str) -> list[int]:
    """Read the numbers of an option, between commas. Raises `argparse.ArgumentTypeError`."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = [0]
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"must be numbers from 1 on, such as 1,2,4, got {text!r}")
    return values


def flag_of(name: str) -> str:
    """Return the flag of an option: `--max-tokens` for `max_tokens`."""
    return f"--{name.replace('_', '-')}"


def check_counts(args: argparse.Namespace, *names: str) -> None:
    """Exit with an error if one of the options `names` is given and is less than 1."""
    for name in names:
        value = getattr(args, name)
        if value is not None and value < 1:
            fail(f"{flag_of(name)} must be at least 1, got {value}")


def fail(message: str, code: int = 2) -> NoReturn:
    """Print `message` as one line on stderr, after the command's name, and exit with `code`."""
    text = " ".join(message.split()).encode("utf-8", "backslashreplace").decode()
    print(f"{command_name()}: {text}", file=sys.stderr)
    sys.exit(code)


def choose(doc: str | None, commands: Mapping[str, str], **options: Any) -> str:
    """Return the subcommand that the first argument names; the other arguments become its own.

    `commands` has the purpose of each. `doc` and `options` are those of `CommandParser`.
    """
    parser = CommandParser(doc, **options)
    choices = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, purpose in commands.items():
        choices.add_parser(name, help=purpose)
    command = parser.parse_args(sys.argv[1:2]).command
    sys.argv[:2] = [f"{sys.argv[0]} {command}"]  # the name that its messages begin with
    return command


def command_name() -> str:
    """Return the name that messages begin with: `dlm generate`, or the name of a script."""
    return Path(sys.argv[0]).name


def open_streams() -> None:
    """Open each standard stream that the caller has closed on the null device.

    Otherwise the next file that is opened would get the stream's number, and text for the stream
    would be written into that file. Child processes inherit the opened streams.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(nowhere, True)
            setattr(sys, name, os.fdopen(nowhere, mode))


def stop_at(*numbers: signal.Signals) -> None:
    """Make SIGINT or SIGTERM, whichever are named, end the process at once.

    A signal that the caller has set to be ignored stays ignored.
    """
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


def interruptible() -> None:
    """Make SIGINT raise `KeyboardInterrupt` again, once everything is imported and loaded."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _stop(number: int, _: Any) -> None:
    """Exit without an exception: torch does not survive an exception while it is imported."""
    text, code = _ENDS[signal.Signals(number)]
    show_cursor = "\x1b[?25h\n" if os.isatty(2) else ""
    os.write(2, f"{show_cursor}{command_name()}: {text}\n".encode())
    os._exit(code)
