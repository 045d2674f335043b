"""`python -m gpuwise` is the command line."""

from gpuwise.cli.main import main

if __name__ == "__main__":
    main()
