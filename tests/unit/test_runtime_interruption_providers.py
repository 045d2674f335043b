"""Which cloud this machine is of, found without the network."""

import pytest

from gpuwise.errors import InputError
from gpuwise.runtime.interruption.providers import source_for


def firmware(folder, **fields):
    for name, text in fields.items():
        (folder / name).write_text(text + "\n")
    return folder


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"sys_vendor": "Amazon EC2", "product_name": "p5.48xlarge"}, "aws"),
        ({"sys_vendor": "Xen", "product_name": "HVM domU", "bios_version": "4.11.amazon"}, "aws"),
        ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, "gcp"),
        (
            {
                "sys_vendor": "Microsoft Corporation",
                "product_name": "Virtual Machine",
                "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77",
            },
            "azure",
        ),
        ({"sys_vendor": "Microsoft Corporation", "product_name": "Virtual Machine"}, None),  # a Hyper-V at home
        ({"sys_vendor": "Google", "product_name": "Pixelbook"}, None),
        ({"sys_vendor": "QEMU", "product_name": "Standard PC"}, None),
        ({}, None),
    ],
)
def test_by_what_the_firmware_says(fields, name, tmp_path):
    source = source_for("auto", dmi=firmware(tmp_path, **fields))
    assert (source and source.name) == name


def test_firmware_that_is_no_text(tmp_path):
    (tmp_path / "sys_vendor").write_bytes(b"\xff\xfe\x00")
    assert source_for("auto", dmi=tmp_path) is None
    assert source_for("auto", dmi=tmp_path / "absent") is None


def test_by_name():
    assert source_for("none") is None
    assert [source_for(name).name for name in ("aws", "gcp", "azure")] == ["aws", "gcp", "azure"]
    with pytest.raises(InputError, match="unknown source of interruption notices 'hetzner'"):
        source_for("hetzner")
