"""What gpuwise does on a real GPU: forecasts first, then the steps themselves.

    python -m benchmarks.gpu_session --part 1 --out DIR     memory: allocator, driver and forecast in 30 configurations
    python -m benchmarks.gpu_session --part 2 --out DIR     time and power of 20 steps, then `measure` and `validate`
    python -m benchmarks.gpu_session --part 3 --out DIR     every CUDA path of the runtime, then training speed

Each part takes at most 8 minutes on one large NVIDIA GPU with PyTorch 2.11 or newer, needs no network, and is carried on where
DIR/part-N.jsonl has rows of it: those are not measured again. A configuration that crashes or runs out of memory costs its own
row alone. The table at the end is also in DIR/part-N.txt; --table only writes it again. --toy: tiny sizes, for a CPU.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu_session import needs

MINUTES = 7.5
FOLDER = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_session", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=("1", "2", "3"), required=True)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where rows and tables are kept")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="no row is begun that would end later")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows with this in their names")
    parser.add_argument("--toy", action="store_true", help="tiny sizes")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="cuda, unless --toy is given")
    parser.add_argument("--beside", type=int, help="forecasts made at once (half of the processors)")
    parser.add_argument("--table", action="store_true", help="only write the table again")
    options = parser.parse_args()
    if lacking := needs.missing(needs.NEEDED):
        print(lacking, file=sys.stderr)
        return 2
    sys.path[:0] = [path for path in (str(FOLDER), str(FOLDER / "src")) if path not in sys.path]
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(FOLDER), str(FOLDER / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    from benchmarks.gpu_session.rows import RowFile
    from benchmarks.gpu_session.server import PARTS
    from benchmarks.gpu_session.session import Session

    options.out.mkdir(parents=True, exist_ok=True)
    file = RowFile(options.out / f"part-{options.part}.jsonl")
    left: list[str] = []
    if not options.table:
        device = options.device or ("cpu" if options.toy else "cuda")
        if device == "cuda" and not _has_gpu():
            print("PyTorch sees no CUDA device here; --toy runs tiny sizes on the CPU.", file=sys.stderr)
            return 2
        if lacking := needs.missing(needs.WANTED):
            print(f"{lacking}; rows that need them are skipped", file=sys.stderr)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves the processes ended
        beside = options.beside or max(1, (os.cpu_count() or 2) // 2)
        left = Session(
            file, options.part, device, toy=options.toy, only=options.only, budget_s=60 * options.minutes, beside=beside
        ).run()
    table = importlib.import_module(f"benchmarks.gpu_session.{PARTS[options.part]}").table(file)
    (options.out / f"part-{options.part}.txt").write_text(table + "\n", encoding="utf-8")
    print(table)
    if left:
        print(f"left for another call: {', '.join(left)}")
    return 0


def _has_gpu() -> bool:
    """Asked in a process of its own: the one that asks has a context from then on."""
    code = "import torch; raise SystemExit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code]).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
