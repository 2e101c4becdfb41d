"""`dlm batch` from a checkout: `python scripts/batch.py --help`."""

from dlm.cli.batch import main

if __name__ == "__main__":
    main()
