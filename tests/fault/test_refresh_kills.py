"""A refresh that is killed at any call on the folder of lists leaves the old list or the new one, and the next one goes on."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.price_lists import content, shipped, yardstick

from gpuwise.hardware.catalog import load_catalog
from gpuwise.hardware.refreshed import folder, read_list, refreshed_files
from gpuwise.refresh import store
from gpuwise.refresh.refresh import ListBytes, refresh
from gpuwise.refresh.sources import request_of

NAME = "skypilot:aws"
MOST_CALLS = 40


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("GPUWISE_NO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("GPUWISE_CONFIG_DIR", str(tmp_path / "none"))
    return tmp_path / "gpuwise" / "prices"


def later() -> ListBytes:
    """The list with one price moved."""
    whole = content(NAME)
    return replace(whole, documents=tuple(each.replace(b",16.2,", b",15.9,") for each in whole.documents))


def take(what: ListBytes) -> str:
    return refresh(request_of(NAME), what, shipped=shipped(), by=yardstick()).state


class KilledAtFile:
    """Ends the process before its nth call that opens, makes, renames or removes something in the folder of lists."""

    def __init__(self, at: int):
        self.at, self.met = at, 0

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if event != "open" and (event == "os.kill" or not event.startswith("os.")):
            return
        with suppress(TypeError, ValueError):  # a descriptor instead of a path
            if arguments and os.fsdecode(os.fspath(arguments[0])).startswith(str(folder())):  # type: ignore[call-overload]
                self.met += 1
                if self.met == self.at:
                    os.kill(os.getpid(), signal.SIGKILL)


class KilledAtWrite:
    """A file that ends the process before its nth write, sync or flush, with half of the bytes written."""

    def __init__(self, at: int):
        self.at, self.met = at, 0

    def step(self) -> None:
        self.met += 1
        if self.met == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        written_whole, fsync = store.written_whole, os.fsync

        class Slow:
            def __init__(me, file: object):  # noqa: N805
                me.file = file

            def write(me, data: bytes) -> None:  # noqa: N805
                for start in range(0, len(data), 1024):
                    me.file.write(data[start : start + 1024])  # type: ignore[attr-defined]
                    me.file.flush()  # type: ignore[attr-defined]
                    self.step()

        class Whole:
            def __init__(me, path: Path):  # noqa: N805
                me.whole = written_whole(path)

            def __enter__(me) -> Slow:  # noqa: N805
                return Slow(me.whole.__enter__())

            def __exit__(me, *error: object) -> object:  # noqa: N805
                self.step()
                return me.whole.__exit__(*error)  # type: ignore[arg-type]

        def sync(descriptor: int) -> None:
            self.step()
            fsync(descriptor)
            self.step()

        store.written_whole = Whole  # type: ignore[assignment]
        os.fsync = sync


def killed(how: str, at: int) -> int:
    """The exit code of a process that refreshes and is killed at its nth call; 0 where it has fewer."""

    def life() -> None:
        if how == "file":
            sys.addaudithook(KilledAtFile(at))
        else:
            KilledAtWrite(at).install()
        os._exit(0 if take(later()) == "taken" else 1)

    process = multiprocessing.get_context("fork").Process(target=life)
    process.start()
    process.join()
    return int(process.exitcode or 0)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("how", ["file", "write"])
def test_a_kill_at_any_call_leaves_a_whole_list(how: str, kept: Path):
    old, new = content(NAME).digest, later().digest
    digests = []
    for at in range(1, MOST_CALLS):
        for path in kept.glob("*.json") if kept.exists() else ():
            path.unlink()
        assert take(content(NAME)) == "taken"
        code = killed(how, at)
        (path,) = refreshed_files()
        digests.append(read_list(path).sha256)
        assert load_catalog().ignored_lists == ()
        assert take(later()) in ("taken", "unchanged")  # nothing is in the way of the next one
        assert sorted(each.name for each in kept.iterdir()) == ["aws.json", "lock"]
        if code == 0:
            break
        assert code == -signal.SIGKILL
    else:
        raise AssertionError("the refresh has more calls than were tried")
    assert len(digests) > 4
    assert set(digests) == {old, new}  # killed before the rename, and after it
    assert digests == sorted(digests, key=[old, new].index)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_the_first_list_is_whole_or_absent(kept: Path):
    for at in range(1, MOST_CALLS):
        for path in kept.glob("*.json") if kept.exists() else ():
            path.unlink()
        if killed("file", at) == 0:
            break
        for path in refreshed_files():
            assert read_list(path).sha256 == later().digest
    assert at > 4
    assert take(later()) == "unchanged"
