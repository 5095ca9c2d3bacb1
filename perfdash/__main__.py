"""`python -m perfdash` is the `perfdash` command."""

from perfdash.cli import main

if __name__ == "__main__":
    main()
