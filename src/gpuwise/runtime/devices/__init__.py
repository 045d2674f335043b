"""Devices: every accelerator of PyTorch behind one interface."""

from gpuwise.runtime.devices.backend import Backend, Event
from gpuwise.runtime.devices.here import VIRTUAL, accelerator, backend_of, device_of_rank
from gpuwise.runtime.devices.makers import Cuda

__all__ = ["VIRTUAL", "Backend", "Cuda", "Event", "accelerator", "backend_of", "device_of_rank"]
