"""`dlm serve` from a checkout: `python scripts/serve.py --help`."""

from dlm.cli.serve import main

if __name__ == "__main__":
    main()
