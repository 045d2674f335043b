"""benchmarks.printed_pages shows the lines of a page that its command no longer prints."""

from __future__ import annotations

from benchmarks.printed_pages import BLOCK, stale_lines


def test_a_block_is_a_command_and_what_it_prints() -> None:
    page = "text\n```text\n$ gpuwise doctor\nversion 1\n```\n```text\nno command\n```\n"
    assert BLOCK.findall(page) == [("gpuwise doctor", "version 1\n")]


def test_lines_that_are_printed_blank_or_left_out_are_not_stale() -> None:
    assert stale_lines("a plan\n\n...\nits time\n", ["a plan", "more", "its time"]) == []


def test_a_stale_line_stands_beside_the_nearest_one() -> None:
    output = ["4 x rtx-3080 for $2.36", "assumed"]
    assert stale_lines("4 x rtx-3080 for $2.62\n", output) == [("4 x rtx-3080 for $2.62", "4 x rtx-3080 for $2.36")]
    assert stale_lines("something else entirely\n", []) == [("something else entirely", "")]
