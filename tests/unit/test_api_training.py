"""What `train` forecasts with on this machine."""

from dataclasses import replace

from gpuwise.api import training
from gpuwise.hardware import detect_machine, load_catalog


def test_a_cpu_that_was_measured_is_forecast_as_measured(monkeypatch):
    machine = detect_machine(load_catalog(), measured=False)
    cpu = replace(load_catalog().chips["epyc-9654"], calibration="/somewhere/machines/this.toml")
    monkeypatch.setattr(training, "detect_machine", lambda catalog: replace(machine, chip=cpu, count=1))
    here = training._this_device()
    assert here.chip is cpu
    assert (here.capacity_bytes, here.torch_device) == (machine.host_memory_bytes, "cpu")
