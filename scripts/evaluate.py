"""Evaluate the answers of a model: how often they are valid and right, and what they cost.

python scripts/evaluate.py exams --prompts 200
python scripts/evaluate.py exams --help
"""

from importlib import import_module

from dlm.cli.command_line import choose

COMMANDS = {
    "compare": "Compare ways to decode, policies or settings on extractions or a file of prompts.",
    "exams": "Measure each ability of a model, without a constraint and with one.",
    "kinds": "Measure every kind of constraint, all kinds in one batch.",
    "decisions": "Measure how well the probabilities of decisions are calibrated.",
    "transformers": "Compare the engine with transformers' own `generate`.",
}
MODULES = {"compare": "answers", "exams": "answers", "kinds": "answers"}  # where it is not the name


def main() -> None:
    command = choose(__doc__, COMMANDS)
    import_module(f"evaluation.{MODULES.get(command, command)}").main(command)


if __name__ == "__main__":
    main()
