"""`dlm plan` from a checkout: `python scripts/plan.py --help`."""

from dlm.cli.plan import main

if __name__ == "__main__":
    main()
