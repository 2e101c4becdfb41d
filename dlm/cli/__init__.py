"""The `dlm` command: a module for each subcommand, imported only when it is chosen."""

import sys
from importlib import import_module

from dlm.cli.command_line import choose

COMMANDS = {
    "generate": "Generate text, or what a schema, a regex, a grammar or tools accept.",
    "serve": "Serve a model over HTTP, as OpenAI's API and vLLM's users expect it.",
    "batch": "Extract from a file of texts, or answer a file of OpenAI's batch lines.",
    "quantize": "Write a checkpoint whose experts are NVFP4 from one of floats.",
    "plan": "Print the memory that a model needs and the least time of a step.",
}
_HELP = """Makes diffusion language models obey a grammar: JSON that is valid by construction.

    dlm generate --choice yes,no "Is it paid? Invoice AK-4071 is paid."
    dlm generate --help
"""


def main() -> None:
    """Run the subcommand that the first argument names; the others are its own."""
    sys.argv[0] = "dlm"  # also as `python -m dlm`
    command = choose(_HELP, COMMANDS, prog="dlm")
    import_module(f"{__name__}.{command}").main()
