"""Power, clock and temperature of the first GPU over time, read beside the process that is measured."""

from __future__ import annotations

import subprocess
import threading
import time
from contextlib import suppress
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.gpu_session import needs

EVERY_S = 0.05


class Reading(NamedTuple):
    """At a moment of the monotonic clock, which all processes share."""

    at_s: float
    power_w: float
    sm_clock_mhz: float
    temperature_c: float


class PowerLog:
    """Reads from when it is entered until it is left: by NVML, else by nvidia-smi, else not at all."""

    def __init__(self) -> None:
        self.readings: list[Reading] = []
        self.source = ""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._tool: subprocess.Popen[str] | None = None

    def __enter__(self) -> PowerLog:
        read = self._by_nvml() or self._by_tool()
        if read is not None:
            self._thread = threading.Thread(target=read, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._tool is not None:
            self._tool.kill()
            self._tool.wait()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def between(self, begin_s: float, end_s: float) -> dict[str, Any] | None:
        """Means over that time; None without a reading in it."""
        inside = [reading for reading in self.readings if begin_s <= reading.at_s <= end_s]
        if not inside:
            return None
        means = {name: fmean(getattr(reading, name) for reading in inside) for name in Reading._fields[1:]}
        return {
            **means,
            "highest_power_w": max(reading.power_w for reading in inside),
            "lowest_sm_clock_mhz": min(reading.sm_clock_mhz for reading in inside),
            "readings": len(inside),
            "source": self.source,
        }

    def _by_nvml(self) -> Any:
        if not needs.there("pynvml"):
            return None
        import pynvml

        try:
            pynvml.nvmlInit()
            gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
            pynvml.nvmlDeviceGetPowerUsage(gpu)
        except pynvml.NVMLError:
            return None
        self.source = "NVML"

        def read() -> None:
            while not self._ended.wait(EVERY_S):
                with suppress(pynvml.NVMLError):
                    self.readings.append(
                        Reading(
                            time.monotonic(),
                            pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
                            pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
                            pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
                        )
                    )

        return read

    def _by_tool(self) -> Any:
        command = [
            "nvidia-smi",
            "--query-gpu=power.draw,clocks.sm,temperature.gpu",
            "--format=csv,noheader,nounits",
            "-i",
            "0",
            "-lms",
            str(round(1e3 * EVERY_S)),
        ]
        try:
            tool = self._tool = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            return None
        self.source = "nvidia-smi"

        def read() -> None:
            assert tool.stdout is not None
            for line in tool.stdout:
                with suppress(ValueError):
                    power_w, clock, temperature = map(float, line.split(","))
                    self.readings.append(Reading(time.monotonic(), power_w, clock, temperature))

        return read
