"""How a command says that it cannot be followed: one line on stderr, and an exit code."""

import argparse
import sys
from pathlib import Path
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Without the usage in front of what is wrong."""

    def error(self, message: str) -> NoReturn:
        fail(message)


def fail(message: str, code: int = 2) -> NoReturn:
    said = " ".join(message.split()).encode("utf-8", "backslashreplace").decode()
    print(f"{Path(sys.argv[0]).name}: {said}", file=sys.stderr)
    sys.exit(code)
