"""`python -m layerkit` is the command line program."""

from layerkit.cli.main import main

if __name__ == "__main__":
    main()
