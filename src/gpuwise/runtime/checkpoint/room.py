"""How much room on the disk a checkpoint needs."""

MARGIN_BYTES = 64 * 2**20  # the log, the report and what else the machine writes meanwhile


def needed_bytes(nbytes: int) -> int:
    """Free bytes without which a checkpoint of so many is not begun: what files take beyond their size, and a margin."""
    return nbytes + nbytes // 50 + MARGIN_BYTES
