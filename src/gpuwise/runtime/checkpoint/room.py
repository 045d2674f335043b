"""How much room on the disk a checkpoint needs."""

MARGIN_BYTES = 64 * 2**20  # the log, the report and what else the machine writes meanwhile


def needed_bytes(nbytes: int, *, margin_bytes: int = MARGIN_BYTES) -> int:
    """Free bytes without which a checkpoint of so many is not begun: what files take beyond their size, and a margin.

    A run's first checkpoint and its last are made without the margin: nothing else has what they hold.
    """
    return nbytes + nbytes // 50 + margin_bytes
