"""The interface of devices: what each kind of accelerator has, what replaces the rest, and that nobody goes around it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import gpuwise
from gpuwise.errors import InputError
from gpuwise.runtime.devices import Backend, accelerator, backend_of, device_of_rank
from gpuwise.runtime.devices import here as here_module


class Nothing(SimpleNamespace):
    """A device module that has only what every one must have."""


def other(module: object) -> Backend:
    """A backend from outside with this module."""
    backend = Backend(torch.device("hpu", 0))
    backend.__dict__["_module"] = module
    return backend


def test_the_cpu_has_nothing_to_wait_for():
    backend = backend_of("cpu")
    assert backend.is_host
    assert (backend.copies_overlap, backend.pins, backend.has_timed_events) == (False, False, False)
    backend.synchronize()
    backend.use()
    backend.reset_peak()
    assert backend.mark() is None
    assert backend.random_state() is None
    assert backend.allocated_bytes() is None
    assert backend.free_and_total_bytes() is None
    room = torch.zeros(4)
    assert backend.pinned(room) is room
    assert backend.collectives == "gloo"
    assert backend.count() == 1


def test_a_module_without_anything_is_no_attribute_error():
    backend = other(Nothing(synchronize=lambda device: None))
    assert (backend.copies_overlap, backend.non_blocking, backend.pins, backend.has_timed_events) == (False,) * 4
    assert backend.name == "a device of type hpu"
    backend.use()
    backend.synchronize()
    backend.reset_peak()
    backend.set_random_state(torch.zeros(1))
    room = torch.zeros(4)
    assert backend.pinned(room) is room
    assert backend.register_host_memory(room) is None
    figures = (
        backend.allocated_bytes(),
        backend.peak_allocated_bytes(),
        backend.reserved_bytes(),
        backend.peak_reserved_bytes(),
    )
    assert figures == (None,) * 4
    assert backend.free_and_total_bytes() is None
    assert backend.random_state() is None
    assert backend.collectives is None
    assert "hpu" in backend.why_no_compile()


def test_a_module_like_cuda_is_asked_by_its_device():
    calls: list[tuple[str, torch.device]] = []

    def answer(name, value):
        def function(device):
            calls.append((name, device))
            return value

        return function

    module = Nothing(
        get_device_name=answer("name", "Gaudi 2"),
        memory_allocated=answer("allocated", 5),
        max_memory_allocated=answer("peak", 7),
        mem_get_info=answer("free", (3, 10)),
        get_rng_state=answer("random", torch.ones(2)),
        synchronize=answer("synchronize", None),
        is_available=lambda: True,
        device_count=lambda: 8,
    )
    backend = other(module)
    assert backend.name == "Gaudi 2"
    assert (backend.allocated_bytes(), backend.peak_allocated_bytes()) == (5, 7)
    assert backend.free_and_total_bytes() == (3, 10)
    backend.synchronize()
    assert backend.count() == 8
    assert {device for _, device in calls} == {torch.device("hpu", 0)}


def test_apple_has_one_queue_and_no_double_precision(monkeypatch):
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 3 * 2**30)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 4 * 2**30)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 10 * 2**30)
    backend = backend_of("mps")
    assert (backend.copies_overlap, backend.non_blocking, backend.pins, backend.has_tf32) == (False,) * 4
    assert backend.allocated_bytes() == 3 * 2**30
    assert backend.free_and_total_bytes() == (6 * 2**30, 10 * 2**30)
    assert backend.peak_allocated_bytes() is None
    assert backend.why_no_float64() == "Apple's GPUs have no double precision"
    assert backend.why_no_fp8() == "Apple's GPUs have no fp8 arithmetic"
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, minor: major <= 13)
    assert "macOS 14" in backend.why_no_bf16()
    assert backend.collectives is None


def test_intel_says_whether_it_has_double_precision(monkeypatch):
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda device: SimpleNamespace(has_fp64=False))
    monkeypatch.setattr(torch.xpu, "get_device_name", lambda device: "Intel Arc A770")
    assert backend_of("xpu").why_no_float64() == "Intel Arc A770 has no double precision"
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda device: SimpleNamespace(has_fp64=True))
    assert backend_of("xpu").why_no_float64() == ""


@pytest.mark.parametrize(("capability", "fp8", "tf32"), [((7, 5), False, False), ((8, 0), False, True), ((8, 9), True, True)])
def test_nvidia_by_its_compute_capability(monkeypatch, capability, fp8, tf32):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA X")
    backend = backend_of("cuda:0")
    assert (backend.why_no_fp8() == "", backend.has_tf32) == (fp8, tf32)
    assert backend.vendor == "NVIDIA"


def test_rocm_has_no_compute_capability(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 4))
    backend = backend_of("cuda:0")
    assert backend.vendor == "AMD"
    assert backend.why_no_fp8() == ""
    assert backend.has_tf32


def test_the_virtual_device_is_none_that_is_here():
    """Tracing registers its device, and torch.accelerator speaks of that one from then on; so does pinned memory."""
    code = (
        "import torch\n"
        "from gpuwise.runtime.devices import accelerator, backend_of\n"
        "from gpuwise.tracing.accelerator import problem\n"
        "before = accelerator()\n"
        "assert problem() is None\n"
        "assert torch.accelerator.current_accelerator().type == 'virt'\n"
        "assert accelerator() == before, accelerator()\n"
        "from gpuwise.runtime.devices import VIRTUAL\n"
        "from gpuwise.tracing.virtual_device import DEVICE\n"
        "assert VIRTUAL == DEVICE\n"
        "virtual = backend_of(VIRTUAL)\n"
        "virtual.synchronize()\n"
        "assert virtual.allocated_bytes() is None and virtual.why_no_fp8() == ''\n"
        # With the virtual device, Tensor.pin_memory asks it for pinned memory, which it has none of.
        "try: torch.empty(1).pin_memory()\n"
        "except NotImplementedError as error: assert 'PrivateUse1' in str(error)\n"
        "else: raise AssertionError('pin_memory works beside the virtual device: Backend.pinned need not name the device')\n"
        "try: backend_of('cuda').pinned(torch.empty(1))\n"
        "except RuntimeError as error: assert 'CUDA' in str(error) or 'NVIDIA' in str(error), error\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("name", "count"), [("cuda", 8), ("xpu", 2), ("mps", 1)])
def test_here_is_what_torch_accelerator_says(monkeypatch, name, count):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(name))
    monkeypatch.setattr(here_module.BACKENDS[name], "count", lambda backend: count)
    assert accelerator() == torch.device(name)
    assert device_of_rank(count - 1) == torch.device(name, count - 1)
    with pytest.raises(InputError, match=f"rank {count} of this machine has no device"):
        device_of_rank(count)


def test_an_accelerator_without_a_device_is_none(monkeypatch):
    """PyTorch's build is for CUDA; the machine has no GPU."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(here_module.BACKENDS["cuda"], "count", lambda backend: 0)
    assert accelerator() is None
    assert device_of_rank(3) == torch.device("cpu")


ROOT = Path(gpuwise.__file__).parent
INTERFACE, TRACING = "runtime/devices/", "tracing/"  # tracing has CUDA's kernels and autocast lists on the virtual device


def one_kind_of_device(tree: ast.AST) -> list[str]:
    """What a module says that holds for one kind of accelerator alone."""
    uses = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if name in ("torch.cuda", "torch.xpu", "torch.mps", "torch.mtia", "torch.accelerator", "torch.backends.mps"):
                uses.append(name)
            if node.attr in ("is_cuda", "is_mps", "is_xpu"):
                uses.append(node.attr)
        if isinstance(node, ast.Compare):
            constants = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
            uses += sorted(constants & {"cuda", "mps", "xpu"})
    return uses


def test_nobody_goes_around_the_interface():
    uses = {path.relative_to(ROOT).as_posix(): one_kind_of_device(ast.parse(path.read_text())) for path in ROOT.rglob("*.py")}
    assert {path: found for path, found in uses.items() if found and not path.startswith((INTERFACE, TRACING))} == {}
    assert {use for path, found in uses.items() if path.startswith(TRACING) for use in found} <= {"cuda"}
    assert uses["runtime/devices/makers.py"]


@pytest.mark.parametrize("code", ["torch.cuda.synchronize()", "if device.type == 'cuda': pass", "x = tensor.is_cuda"])
def test_the_check_of_the_interface_sees_what_it_is_for(code):
    assert one_kind_of_device(ast.parse(code))
