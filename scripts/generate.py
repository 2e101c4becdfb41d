"""`dlm generate` from a checkout: `python scripts/generate.py --help`."""

from dlm.cli.generate import main

if __name__ == "__main__":
    main()
