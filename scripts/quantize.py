"""`dlm quantize` from a checkout: `python scripts/quantize.py --help`."""

from dlm.cli.quantize import main

if __name__ == "__main__":
    main()
