"""`python -m privkit`."""

from privkit.cli import main

if __name__ == "__main__":
    main()
