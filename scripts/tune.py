"""`dlm tune` from a checkout: `python scripts/tune.py --help`."""

from dlm.cli.tune import main

if __name__ == "__main__":
    main()
