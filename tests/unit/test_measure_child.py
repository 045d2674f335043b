"""Child processes that answer in JSON lines: what becomes of their answers, of their noise and of their deaths."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuwise.measure import child as module
from gpuwise.measure.child import ChildDiedError, answers

Ask = Callable[..., Iterator[dict[str, Any]]]
BEGIN = "import os, signal, subprocess, sys\nfrom gpuwise.measure.child import WorkerConnection\nchild = WorkerConnection()\n"
LONGEST_S = 20.0  # a child that is not ended by then never is


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """answers() of a child of this code, in which `child` is its WorkerConnection."""

    def asking(code: str, request: Any = None, **options: Any) -> Iterator[dict[str, Any]]:
        (tmp_path / "a_child.py").write_text(f"{BEGIN}{code}\n")
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        return answers("a_child", {} if request is None else request, environment={"PYTHONPATH": path}, **options)

    return asking


def test_answers_come_in_order_and_say_what_was_asked(ask: Ask):
    request = {"text": "µ × 8\n", "list": list(range(50_000))}  # more than a pipe holds
    code = "child.send(asked=child.request)\nfor n in range(300): child.send(n=n, text='é\\n' * n)\nchild.send()"
    first, *rest, last = ask(code, request)
    assert first == {"asked": request}
    assert [answer["n"] for answer in rest] == list(range(300))
    assert rest[-1]["text"] == "é\n" * 299
    assert last == {}


def test_an_answer_comes_before_the_child_is_done(ask: Ask):
    result = ask("child.send(n=1)\nsignal.pause()")
    assert next(result) == {"n": 1}
    result.close()


def test_what_else_it_prints_is_no_answer(ask: Ask):
    code = (
        "print('{\"n\": 0}')\nos.write(1, b'noise\\n' * 50_000)\nsubprocess.run(['echo', '{}'], check=True)\n"
        "sys.stderr.write('more' * 9999)\nchild.send(n=1)\nprint('end')"
    )
    assert list(ask(code)) == [{"n": 1}]


def test_a_child_without_an_answer_gives_none(ask: Ask):
    assert list(ask("")) == []


def test_variables_beside_ours(ask: Ask, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OF_OURS", "kept")
    (answer,) = ask("child.send(**{name: os.environ[name] for name in ('OF_OURS', 'PYTHONPATH')})")
    assert answer["OF_OURS"] == "kept"


def died(found: Iterator[dict[str, Any]], answered: list[dict[str, Any]]) -> ChildDiedError:
    """How the child died; `answered` gets what it said before."""
    with pytest.raises(ChildDiedError) as caught:
        answered.extend(found)
    return caught.value


def test_an_exit_code_and_the_last_words(ask: Ask):
    before: list[dict[str, Any]] = []
    code = "child.send(n=1)\nfor n in range(9): print('line', n)\nprint('cannot go on', file=sys.stderr)\nsys.exit(3)"
    error = died(ask(code, purpose="trial"), before)
    assert before == [{"n": 1}]
    assert error.what == "the trial failed with exit code 3: cannot go on"
    assert error.tail.splitlines() == ["line 5", "line 6", "line 7", "line 8", "cannot go on"]
    assert (error.code, error.exit_code, error.signal, error.likely_out_of_memory) == ("child-died", 2, None, False)


def test_an_exception_is_told_by_its_last_line(ask: Ask):
    assert died(ask("raise ValueError('the sky fell')"), []).what == (
        "the benchmark failed with exit code 1: ValueError: the sky fell"
    )


@pytest.mark.parametrize(
    "code",
    [
        "raise MemoryError",
        "raise RuntimeError('DefaultCPUAllocator: can\\'t allocate memory')",
        "raise RuntimeError('CUDA out of memory.')",
    ],
)
def test_one_that_says_so_ran_out_of_memory(ask: Ask, code: str):
    assert died(ask(code), []).likely_out_of_memory


@pytest.mark.parametrize(("name", "memory"), [("SIGKILL", True), ("SIGSEGV", False), ("SIGTERM", False)])
def test_a_killed_child_keeps_what_it_said(ask: Ask, name: str, memory: bool):
    before: list[dict[str, Any]] = []
    error = died(
        ask(
            f'child.send(n=1)\nchild._answers.write(\'{{"n": 2, "cut\')\nchild._answers.flush()\n'
            f"os.kill(os.getpid(), signal.{name})"
        ),
        before,
    )
    assert before == [{"n": 1}]
    assert error.signal == signal.Signals[name]
    assert f"the benchmark was killed by {name}" in error.what
    assert ("where memory is used up" in error.what) is error.likely_out_of_memory is memory


def test_a_module_that_is_not_there():
    assert "No module named" in died(answers("gpuwise.measure.nothing_of_this_name", {}), []).what


def test_a_child_that_is_silent_too_long_is_ended(ask: Ask, monkeypatch: pytest.MonkeyPatch):
    passed_s = iter([0.0])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(passed_s, 0.0)))
    result = ask("child.send(pid=os.getpid())\nsignal.pause()", silence_s=600.0)
    pid = next(result)["pid"]
    passed_s = iter(range(0, 10**9, 400))  # each look at the clock
    with pytest.raises(ChildDiedError, match="the benchmark said nothing for 600 s and was ended") as caught:
        next(result)
    assert caught.value.signal is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Callable[[], bool]]:
    """Whether any process still holds the file `alive`, or has not opened it yet."""
    os.mkfifo(tmp_path / "alive")
    end = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    yield lambda: not select.select([end], [], [], LONGEST_S)[0]
    os.close(end)


HOLDS = """
held = os.open(child.request["alive"], os.O_WRONLY)
grandchild = subprocess.Popen([sys.executable, "-c", "import signal; signal.alarm(60); signal.pause()"], pass_fds=[held])
child.send(begun=True)
"""


@pytest.mark.parametrize("how", ["closed", "interrupted"])
def test_who_stops_listening_ends_the_child_and_what_it_started(ask: Ask, tmp_path: Path, lives: Callable[[], bool], how: str):
    result = ask(HOLDS + "signal.pause()", {"alive": str(tmp_path / "alive")})
    assert next(result) == {"begun": True}
    if how == "closed":
        result.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            result.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
    assert not lives()


def test_a_child_that_does_not_listen_is_killed(
    ask: Ask, tmp_path: Path, lives: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_GRACE_S", 0.1)
    code = "held = os.open(child.request['alive'], os.O_WRONLY)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    result = ask(f"{code}child.send()\nwhile True: signal.pause()", {"alive": str(tmp_path / "alive")})
    next(result)
    result.close()
    assert not lives()


@pytest.mark.parametrize("end", ["sys.exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_what_a_dead_child_started_is_ended(ask: Ask, tmp_path: Path, lives: Callable[[], bool], end: str):
    died(ask(HOLDS + end, {"alive": str(tmp_path / "alive")}), [])
    assert not lives()


def test_ctrl_c_reaches_this_process_alone(ask: Ask):
    (answer,) = ask("child.send(group=os.getpgid(0), pid=os.getpid())")
    assert answer["group"] == answer["pid"] != os.getpgid(0)


def test_no_file_stays_open(ask: Ask):
    def opened() -> int:
        return len(os.listdir("/dev/fd"))

    list(ask(""))
    before = opened()
    list(ask("child.send(n=1)"))
    died(ask("raise ValueError"), [])
    next(result := ask("child.send(n=1)\nsignal.pause()"))
    result.close()
    assert opened() == before


def test_waiting_for_a_child_needs_no_pytorch():
    code = "import sys, gpuwise.measure.child, json; print(json.dumps([n for n in ('torch', 'numpy') if n in sys.modules]))"
    assert json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) == []
