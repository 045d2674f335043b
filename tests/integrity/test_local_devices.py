"""The map from devices of the table of local engines to chips of the catalog."""

import tomllib
from pathlib import Path

from gpuwise.hardware import Catalog

MAP = tomllib.loads((Path(__file__).parents[2] / "benchmarks/serving/local_devices.toml").read_text(encoding="utf-8"))
CHIPS = Catalog(user_files=()).chips


def test_every_device_is_a_chip_of_the_catalog():
    ids = [*MAP["devices"].values(), *(id_ for sizes in MAP["by_memory_gb"].values() for id_ in sizes.values())]
    assert set(ids) <= set(CHIPS)
    assert not MAP["devices"].keys() & MAP["by_memory_gb"].keys()


def test_sizes_tell_chips_apart():
    for name, sizes in MAP["by_memory_gb"].items():
        assert {float(gb) * 2**30 for gb in sizes} == {CHIPS[id_].memory_bytes for id_ in sizes.values()}, name
