"""Put grammars, an engine or a server under load, and measure the effect.

python scripts/load.py clients --clients 64 --seconds 60
python scripts/load.py clients --help
"""

from importlib import import_module

from dlm.cli.command_line import choose

COMMANDS = {
    "grammar": "Time a grammar's work, at a real vocabulary and on canvases of 256.",
    "throughput": "Measure the share of a device's time that grammars cost.",
    "host": "Time the host's part of a pass.",
    "stall": "Measure how long one client's grammar delays another client's step.",
    "flood": "Measure how long one client waits while others flood the server.",
    "clients": "Put a server under load by many clients, some of which attack.",
}


def main() -> None:
    command = choose(__doc__, COMMANDS)
    import_module(f"loads.{'throughput' if command == 'host' else command}").main(command)


if __name__ == "__main__":
    main()
