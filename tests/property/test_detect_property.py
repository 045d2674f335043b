"""Detection never fails, whatever the system writes into its files."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.hardware import load as load_module
from gpuwise.hardware.detect import detect, machine_key
from gpuwise.hardware.disturbances import all_busy, disturbances

CPU, EDAC, V1 = "sys/devices/system/cpu/cpu0", "sys/devices/system/edac/mc/mc0/dimm0", "sys/fs/cgroup/memory"
FILES = {
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: A @ 2GHz\nphysical id\t: 0\ncore id\t: 0\ncpu MHz\t: 9.5\nflags\t: avx2\n",
    "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 900 kB\n",
    "proc/stat": "cpu0 1 2 3 4 5 6 7 8 9 10\n",
    "proc/loadavg": "0.50 1.25 2.00 3/96 8483\n",
    "proc/pressure/cpu": "some avg10=1.16 total=2500000\n",
    "proc/self/status": "Cpus_allowed_list:\t0-1\n",
    "proc/self/stat": "5 (a) S 1 1 1 0 -1 4 1 2 3 4 5 6 7 8 9\n",
    "proc/self/cgroup": "9:memory:/a\n3:cpu:/a\n0::/a\n",
    "proc/self/mountinfo": "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n",
    "sys/fs/cgroup/cpu.max": "150000 100000\n",
    "sys/fs/cgroup/cpu.stat": "throttled_usec 25\n",
    "sys/fs/cgroup/memory.max": "4096\n",
    "sys/fs/cgroup/memory.current": "100\n",
    "sys/fs/cgroup/memory.stat": "inactive_file 20\n",
    f"{V1}/memory.limit_in_bytes": "4096\n",
    f"{CPU}/cache/index0/level": "1\n",
    f"{CPU}/cache/index0/size": "32K\n",
    f"{CPU}/cache/index0/shared_cpu_list": "0-1\n",
    f"{CPU}/cpufreq/cpuinfo_max_freq": "3500000\n",
    f"{CPU}/cpufreq/scaling_cur_freq": "3500000\n",
    f"{CPU}/thermal_throttle/core_throttle_count": "2\n",
    f"{EDAC}/size": "32768\n",
    f"{EDAC}/dimm_location": "channel 0 slot 0\n",
    f"{EDAC}/dimm_mem_type": "Registered-DDR5\n",
    "sys/firmware/dmi/tables/DMI": "\x11\x22" + "\x01" * 60 + "\0\0",
    "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 10 kB\n",
    "sys/devices/system/node/node0/distance": "10 20\n",
    "sys/bus/pci/devices/0/vendor": "0x1002\n",
    "sys/bus/pci/devices/0/class": "0x030000\n",
    "sys/class/dmi/id/product_name": "g5.xlarge\n",
}
JUNK = st.sampled_from(["", "0", "-1", "9" * 5000, "²", "0-999999999", "nan", "1e999", "\n\n: :", "max max", "\0"]) | st.text(
    max_size=40
)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, bytes]:
    """The files of a system, of which some are cut short, hold something else, have a part replaced, or are not there."""
    contents = {}
    for name, usual in FILES.items():
        how = draw(st.sampled_from(["usual", "usual", "junk", "cut", "spliced", "bytes", "missing"]))
        at = draw(st.integers(0, len(usual)))
        junk = draw(JUNK)
        results = {"usual": usual, "junk": junk, "cut": usual[:at], "spliced": usual[:at] + junk + usual[at + 1 :]}
        if how != "missing":
            contents[name] = draw(st.binary(max_size=80)) if how == "bytes" else results[how].encode("utf-8", "replace")
    return contents


@settings(max_examples=30, deadline=None)
@given(contents=damaged())
def test_detection_never_fails(contents: dict[str, bytes]):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, content in contents.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
        settle_s, load_module._SETTLE_S = load_module._SETTLE_S, 0.0
        try:
            result, before, after = detect(root), load_module.load(root), load_module.load(root)
        finally:
            load_module._SETTLE_S = settle_s
        json.dumps(result.to_dict())
        assert machine_key(result) == machine_key(detect(root))
        assert result.cpu.cores >= 1
        assert result.cpu.threads >= 1
        assert isinstance(disturbances(before, after), list)
        assert isinstance(all_busy(before, after), bool)
