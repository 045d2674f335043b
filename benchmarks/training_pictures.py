"""Pictures of a run as a person sees it, for docs/train.md: its live panel, and its report.

    python -m benchmarks.training_pictures

Trains examples/char_gpt.py for 400 steps at a terminal of its own (a minute on two cores), stops it once on the way and
continues it, and replaces docs/figures/train-panel.svg and train-report.png. Linux or macOS; needs pypdfium2 and weasyprint
(which needs Pango, a library of the system): they turn the report into a picture.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PANEL = ROOT / "docs" / "figures" / "train-panel.svg"
REPORT = ROOT / "docs" / "figures" / "train-report.png"
COLUMNS, STEPS = 92, 400
COMMAND = f"train examples/char_gpt.py:job --steps {STEPS} --evaluate-every 100 --save-every 5s --run RUN"
PICTURED = re.compile(rf"step (\d+)/{STEPS}.*saved", re.DOTALL)
PICTURED_AT = 0.8  # of the run: the panel as it was then

# Rich draws a frame over the one before it: it goes up line by line, and clears each.
_REDRAWN = re.compile(r"\r?(?:\x1b\[\d*[AK])+")
_PAGE = (1160, 1690)  # pixels: the width of the report, and how much of it is shown


def at_a_terminal(words: list[str], folder: str, *, until: int | None = None) -> str:
    """What the command writes to a terminal; it is sent SIGTERM when step `until` is seen."""
    import pty
    import termios

    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (40, COLUMNS))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuwise", *words],
        stderr=its,
        stdout=subprocess.DEVNULL,
        stdin=its,
        cwd=ROOT,
        env=environment | {"XDG_STATE_HOME": folder},
    )
    os.close(its)
    written = b""
    while select.select([ours], [], [], 120)[0]:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not part:
            break
        written += part
        seen = [int(result) for result in re.findall(rb"step (\d+)/", part)]
        if until is not None and seen and max(seen) >= until:
            process.send_signal(signal.SIGTERM)
            until = None
    os.close(ours)
    process.wait()
    return written.decode(errors="replace")


def panel_picture(written: str) -> str:
    """The live panel of a run under way, as SVG."""
    from rich.console import Console
    from rich.text import Text

    frames = [
        (abs(int(result[1]) - PICTURED_AT * STEPS), frame)
        for frame in _REDRAWN.split(written)
        if (result := PICTURED.search(frame))
    ]
    frame = min(frames)[1]
    frame = frame[frame.index("╭") : frame.rindex("╯") + 1].replace("\r\n", "\n")
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(f"\x1b[2m{frame}"))
    picture = console.export_svg(title=f"gpuwise {COMMAND.replace('RUN', 'runs/char-gpt')}", unique_id="panel")
    return re.sub(r"@font-face \{.*?\}\n", "", picture, flags=re.DOTALL)  # fonts from elsewhere: any monospaced one will do


def report_picture(html: str) -> bytes:
    """The upper part of a report as PNG. WeasyPrint gives pictures in a page no style of the page's, nor its variables."""
    import pypdfium2
    import weasyprint

    style = html[html.index("<style>") + len("<style>") : html.index("</style>")]
    style = re.sub(r"@media \(prefers-color-scheme: dark\) \{.*?\} \}", "", style, flags=re.DOTALL)
    values = dict(re.findall(r"(--\w+): ([^;}]+?)\s*(?=[;}])", style))
    style = re.sub(r"var\((--\w+)\)", lambda found: values[found[1]], style)
    style = style.replace("repeat(auto-fit, minmax(9em, 1fr))", "repeat(7, 1fr)")
    style = style.replace("repeat(auto-fit, minmax(min(26em, 100%), 1fr))", "1fr 1fr")
    width, height = _PAGE
    page = re.sub(
        r"<style>.*?</style>",
        lambda _: f"<style>{style} @page {{ size: {width}px {height}px; margin: 0 }}</style>",
        html,
        count=1,
        flags=re.DOTALL,
    )
    page = re.sub(r"(<svg [^>]*>)", lambda found: f"{found[1]}<style>{style}</style>", page)
    pdf = weasyprint.HTML(string=page).write_pdf()
    picture = pypdfium2.PdfDocument(pdf)[0].render(scale=96 / 72).to_pil()  # a PDF has 72 units an inch, CSS 96
    file = io.BytesIO()
    picture.quantize(256).save(file, "PNG", optimize=True)
    return file.getvalue()


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m benchmarks.training_pictures", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "char-gpt"
        words = COMMAND.replace("RUN", str(run)).split()
        at_a_terminal(words, folder, until=STEPS // 3)
        written = at_a_terminal([*words, "--resume"], folder)
        PANEL.write_text(panel_picture(written), encoding="utf-8")
        REPORT.write_bytes(report_picture((run / "report.html").read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
