"""Copies of a run in a folder elsewhere, such as a mounted bucket, from which another machine goes on."""

from gpuwise.runtime.copies.run_copies import RunCopies

__all__ = ["RunCopies"]
