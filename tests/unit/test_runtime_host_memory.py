"""Freed memory is kept where the C library knows how, and elsewhere nothing happens."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from gpuwise.runtime.build import host_memory as module
from gpuwise.runtime.build.host_memory import keep_freed_memory

GLIBC = sys.platform.startswith("linux") and platform.libc_ver()[0] == "glibc"
# In a process of its own, as the setting stays: what it holds before and after 64 MiB were freed.
CODE = """
import importlib.util, sys
found = importlib.util.spec_from_file_location("host_memory", sys.argv[1])
module = importlib.util.module_from_spec(found)
found.loader.exec_module(module)
kept = module.keep_freed_memory() if sys.argv[2] == "keep" else None

def pages():
    return int(open("/proc/self/statm").read().split()[1])

block = bytearray(b"x") * 2**26
most = pages()
del block
print(kept, (most - pages()) / most)
"""


@pytest.mark.skipif(not GLIBC, reason="only glibc knows these settings")
@pytest.mark.parametrize(("how", "told", "kept"), [("keep", "True", True), ("leave", "None", False)])
def test_what_is_freed_stays_with_the_process(how: str, told: str, kept: bool):
    done = subprocess.run([sys.executable, "-c", CODE, module.__file__, how], capture_output=True, text=True, check=True)
    message, given_back = done.stdout.split()
    assert message == told
    assert (float(given_back) < 0.1) is kept


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_elsewhere_nothing_is_done(system: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module.sys, "platform", system)
    monkeypatch.setattr(ctypes, "CDLL", None)
    assert keep_freed_memory() is False


@pytest.mark.parametrize("libc", [SimpleNamespace(), OSError("no libc.so.6 here")])
def test_a_library_that_does_not_know_it(libc: object, monkeypatch: pytest.MonkeyPatch):
    def load(_: str) -> object:
        if isinstance(libc, OSError):
            raise libc
        return libc

    monkeypatch.setattr(module.sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", load)
    assert keep_freed_memory() is False


@pytest.mark.parametrize("refused", [-1, -3, -4])
def test_a_setting_that_is_refused_is_told(refused: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module.sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=lambda which, _: int(which != refused)))
    assert keep_freed_memory() is False
