"""Keeps freed host memory for the next step instead of returning it to the system."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

# Options of glibc's malloc.h: the size of a free block at the top of the heap above which it returns to the system, the
# size from which a block is mapped separately, and the largest number of such blocks.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Configures the C library of this process to keep freed memory. Returns whether that succeeded.

    By default glibc returns large blocks to the system. Each training step on the CPU then maps and clears its activations
    again, page by page, which takes 3 to 20 % of the step of common models (benchmarks/steps_here.py). With this setting
    the process holds its peak memory until it ends. Only glibc (Linux) has these settings; other systems are left
    unchanged.
    """
    if not sys.platform.startswith("linux"):
        return False
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        return bool(libc.mallopt(_TRIM_THRESHOLD, _NEVER) & libc.mallopt(_MMAP_THRESHOLD, _NEVER) & libc.mallopt(_MMAP_MAX, 0))
    return False
