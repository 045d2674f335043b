"""python -m tests.validators [--draws N] [TARGET...]: exported files of drawn strategies before the peers' own parsers.

Exits with 1 where a parser refuses a file, where a key is not among its schema's, or where a peer trains to other losses.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.drawn_strategies import drawn_strategy
from tests.validators.parsers import PARSERS, quietly
from tests.validators.schemas import schema_differences
from tests.validators.training import TRAINERS, losses_agree

from gpuwise.errors import UnsupportedError
from gpuwise.export.target import DeviceSet, Heading
from gpuwise.export.targets import TARGETS, target_of
from gpuwise.export.values import values_of_strategy
from gpuwise.export.writing import keys_of_plan
from gpuwise.strategy import HostSettings

_RUN = {"seq_len": 128, "steps": 100, "checkpoint_steps": 10}


def accepted(name: str, draws: int) -> list[str]:
    """Draws strategies, writes those that the target can write, and has its peer read them. The failures, in words."""
    target, failures, counts = target_of(name), [], Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(draws):
            strategy = drawn_strategy(seed)
            values = {**values_of_strategy(strategy, HostSettings(loader_workers=2, prefetch=4)), **_RUN}
            world = DeviceSet(strategy.mesh.devices)
            try:
                keys, _, _ = keys_of_plan(target, values, world)
            except UnsupportedError:
                counts["refused by name"] += 1
                continue
            file = Path(folder) / f"drawn_{seed}.{target.suffix}"
            file.write_text(target.write(keys, Heading("drawn", "0" * 64, "0", target.peer, "run", (), world)))
            noise = io.StringIO()
            try:
                with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
                    quietly(PARSERS[name], file, keys, world)
                counts["accepted"] += 1
                counts["of several devices"] += strategy.mesh.devices > 1
            except (Exception, SystemExit) as error:
                counts["refused by the peer"] += 1
                failures.append(f"{name}, draw {seed}, {strategy}: {type(error).__name__}: {error}"[:600])
    words = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    print(f"{target.peer}: {draws} strategies: {words}")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--draws", type=int, default=300)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    failures: list[str] = []
    for name in options.targets or TARGETS:
        if name not in PARSERS:
            print(f"{name}: no parser here")
            continue
        failures += schema_differences(name)
        failures += accepted(name, options.draws)
        if name in TRAINERS:
            failures += losses_agree(name)
    for failure in failures[:20]:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
