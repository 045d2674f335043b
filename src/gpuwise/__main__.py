"""`python -m gpuwise` is the command line."""

from gpuwise.cli.main import run

if __name__ == "__main__":
    run()
