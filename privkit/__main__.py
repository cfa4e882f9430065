"""Runs the command line by `python -m privkit`."""

from privkit.cli.start import main

if __name__ == "__main__":
    main()
