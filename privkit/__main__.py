"""`python -m privkit`."""

from privkit.start import main

if __name__ == "__main__":
    main()
