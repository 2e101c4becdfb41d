"""The `dlm` command as `python -m dlm`."""

from dlm.cli import main

if __name__ == "__main__":
    main()
