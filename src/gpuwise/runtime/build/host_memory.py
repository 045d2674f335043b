"""Freed host memory is kept for the next step instead of given back to the system."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

# malloc.h of glibc: above what a free block at the top of the heap goes back to the system, from which size on a block is
# mapped by itself, and how many such blocks there may be.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tells the C library of this process to keep what is freed. Returns whether it does.

    By default glibc returns large blocks to the system, so that each step of a training on the CPU has its activations mapped
    and cleared anew, page by page: 3 to 20 % of the step of common models (benchmarks/steps_here.py). With it the process holds
    its peak memory until it ends. Only glibc (Linux) knows these settings; elsewhere nothing is done.
    """
    if not sys.platform.startswith("linux"):
        return False
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        return bool(libc.mallopt(_TRIM_THRESHOLD, _NEVER) & libc.mallopt(_MMAP_THRESHOLD, _NEVER) & libc.mallopt(_MMAP_MAX, 0))
    return False
