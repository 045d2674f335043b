"""The disks under the folders that matter here: the one we are in, and that of gpuwise's cache."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from gpuwise.hardware.detect.files import ROOT, number, read

_VIRTUAL_NAME = re.compile(r"(x?vd[a-z]|ram|zram|loop)")
_VIRTUAL_MODEL = re.compile(r"virtual|qemu|vmware", re.IGNORECASE)


@dataclass(frozen=True)
class Disk:
    """Where a folder is kept. use: "working folder" or "cache". device: nvme0n1, sda, ...; "" for what no disk of this machine
    holds. rotational: None where not told, or told by a virtual disk that knows nothing of what is beneath it."""

    use: str
    folder: str
    file_system: str
    free_bytes: int | None = None
    total_bytes: int | None = None
    device: str = ""
    model: str | None = None
    rotational: bool | None = None


def detect_disk(use: str, folder: Path, root: Path = ROOT) -> Disk:
    """The disk of a folder, which need not exist yet."""
    existing = next((above for above in (folder, *folder.parents) if above.exists()), Path("/"))
    free, total = _space(existing)
    path = Path(os.path.realpath(existing))
    mounts = [fields for line in read(root / "proc/self/mountinfo").splitlines() if (fields := _mount(line))]
    around = [fields for fields in mounts if path.is_relative_to(fields[0])]
    if not around:
        return Disk(use, str(folder), "", free, total)
    # Of several on one folder the last hides the others.
    _, numbers, file_system, source = max(reversed(around), key=lambda fields: len(Path(fields[0]).parts))
    block = _block_device(root, numbers, source)
    if block is None:
        return Disk(use, str(folder), file_system, free, total)
    model = read(block / "device/model") or None
    turning = number(block / "queue/rotational")
    virtual = _VIRTUAL_NAME.match(block.name) or _VIRTUAL_MODEL.search(model or "")
    return Disk(
        use, str(folder), file_system, free, total, block.name, model, None if turning is None or virtual else bool(turning)
    )


def _space(folder: Path) -> tuple[int | None, int | None]:
    """Free and all bytes."""
    try:
        space = shutil.disk_usage(folder)
    except OSError:
        return None, None
    return space.free, space.total


def _mount(line: str) -> tuple[str, str, str, str] | None:
    """Mount point, device numbers, file system and source of a line of mountinfo (man 5 proc_pid_mountinfo)."""
    mounted, _, about = line.partition(" - ")
    fields, source_fields = mounted.split(" "), about.split(" ")
    if len(fields) < 5 or len(source_fields) < 2:
        return None
    point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
    return point, fields[2], source_fields[0], source_fields[1]


def _block_device(root: Path, numbers: str, source: str) -> Path | None:
    """The whole disk's folder in /sys: of a partition its disk, of a mapped volume (LVM, LUKS) the first disk beneath."""
    named = [root / "sys/dev/block" / numbers]
    named += [root / "sys/class/block" / Path(source).name] if source.startswith("/dev/") else []
    block = next((folder for path in named if (folder := Path(os.path.realpath(path))).is_dir()), None)
    for _ in range(8):  # volumes upon volumes
        if block is None:
            return None
        if (block / "partition").exists():
            block = block.parent
        below = sorted(path for path in (block / "slaves").glob("*"))
        if not below:
            return block
        block = Path(os.path.realpath(below[0]))
    return block
