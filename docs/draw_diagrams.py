"""Draw the diagrams of docs/ladder.md: ``python docs/draw_diagrams.py``.

``--check`` says whether they are up to date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from svg_figure import Figure

FOLDER = Path(__file__).resolve().parent / "figures" / "ladder"


def naive() -> Figure:
    """One thread an output."""
    f = Figure(
        262,
        "Rung naive: one thread computes one output",
        "Two neighbouring threads each read a 3 by 3 window of the input map in global memory. The windows "
        "share six of their nine cells. Each thread writes one cell of the output map in global memory.",
    )
    x, y, cell = 30, 58, 24
    f.text(x, 36, "input map, global memory", "head")
    f.grid(x, y, 10, 6, cell)
    f.rect(x + 2 * cell, y + cell, 3 * cell, 3 * cell, "box a")
    f.rect(x + 3 * cell, y + cell, 3 * cell, 3 * cell, "box b")
    f.rect(x + 2 * cell, y + cell, 3 * cell, 3 * cell, "frame a")
    f.rect(x + 3 * cell, y + cell, 3 * cell, 3 * cell, "frame b dash")
    right, top = 430, 70
    f.text(right, 36, "output map, global memory", "head")
    f.grid(right, top, 8, 4, 28)
    f.rect(right + 56, top + 28, 28, 28, "full a")
    f.rect(right + 84, top + 28, 28, 28, "full b")
    f.path(
        [
            (x + 2.5 * cell, y + cell),
            (x + 2.5 * cell, 48),
            (right + 70, 48),
            (right + 70, top + 25),
        ],
        "a",
        head=True,
    )
    f.path(
        [(x + 5.5 * cell, y + 4 * cell), (x + 5.5 * cell, 212), (right + 98, 212), (right + 98, top + 59)],
        "b", "line dash", head=True,
    )  # fmt: skip
    f.text(290, 64, "thread 0", "small")
    f.text(290, 206, "thread 1", "small")
    f.text(
        x,
        244,
        "Each thread asks for every cell and every weight itself: two loads for each multiply-add.",
    )
    return f


def tuned() -> Figure:
    """A tile in shared memory, a block of outputs in registers."""
    f = Figure(
        330,
        "Rung tuned: tiles in shared memory and blocks of outputs in registers",
        "A block copies a tile of the input, with the halo its filter needs, from global to shared memory "
        "once. A thread takes a run of six cells of one row into registers and slides it under the three "
        "taps of a filter row, which gives four neighbouring outputs of each of several maps.",
    )
    cell = 16
    f.text(24, 36, "global memory", "head")
    f.grid(24, 52, 10, 10, cell)
    f.rect(24 + 2 * cell, 52 + cell, 6 * cell, 6 * cell, "box a")
    f.rect(24 + 2 * cell, 52 + cell, 6 * cell, 6 * cell, "frame a")
    f.arrow(194, 110, 246, 110, "a")
    f.lines(196, 82, ["each row", "once"], "small")
    f.text(256, 36, "shared memory: the tile", "head")
    f.grid(256, 52, 6, 6, 26, "box a")
    f.rect(256, 52 + 2 * 26, 6 * 26, 26, "frame b")
    f.path([(412, 117), (458, 117), (458, 88), (468, 88)], "b", head=True)
    f.text(472, 36, "registers of one thread", "head")
    for column in range(6):
        f.rect(474 + 34 * column, 72, 34, 30, "box b")
        f.text(491 + 34 * column, 92, f"x{column}", "middle")
    for column, color in enumerate("acac"):
        left, line = 474 + 34 * column, 114 + 15 * column
        f.path([(left + 3, line), (left + 99, line)], color)
        f.text(left + 103, line + 4, f"y{column}", "small")
    f.lines(474, 196, ["each x serves 3 taps and all maps,", "each tap 4 columns"], "small")
    for level in range(3):
        for column in range(4):
            f.rect(474 + 34 * column + 8 * level, 226 + 11 * level, 34, 22, "box c")
    f.lines(640, 244, ["y of", "3 maps"], "small")
    f.text(
        24,
        296,
        "A tile is loaded once and read many times, and a value in a register costs no load. Here 6 cells and",
    )
    f.text(24, 314, "9 taps, 15 loads, give 36 multiply-adds, for which rung naive needs 72 loads.")
    return f


def fused() -> Figure:
    """The pre-pool map stays in the block."""
    f = Figure(
        372,
        "Rung fused: the map before pooling stays in the block",
        "Above, three kernels: convolution writes the map z to global memory, tanh reads and rewrites it, "
        "pooling reads it and writes y. Below, one kernel: a block keeps its tile of z in shared memory and "
        "writes y alone.",
    )
    f.text(24, 30, "three kernels", "head")
    names = ("convolution", "tanh", "pooling")
    for index, name in enumerate(names):
        f.rect(120 + 180 * index, 44, 120, 34, "box a", 5)
        f.text(180 + 180 * index, 66, name, "middle")
    f.path([(24, 156), (676, 156)], "mute", "thin")
    f.text(676, 174, "global memory", "small mute end")
    f.rect(60, 112, 40, 36, "box mute")
    f.text(80, 135, "x", "middle")
    for index in range(2):
        f.rect(254 + 180 * index, 94, 34, 54, "full b")
        f.text(271 + 180 * index, 126, "z", "middle")
    f.rect(632, 124, 26, 24, "box c")
    f.text(645, 141, "y", "middle")
    f.path([(80, 112), (80, 61), (116, 61)], "ink", head=True)
    for index in range(2):
        start = 180 * index
        f.path([(240 + start, 56), (264 + start, 56), (264 + start, 91)], "b", head=True)
        f.path([(278 + start, 94), (278 + start, 68), (296 + start, 68)], "b", head=True)
    f.path([(600, 61), (645, 61), (645, 120)], "ink", head=True)

    f.text(24, 206, "one kernel", "head")
    f.rect(120, 218, 480, 70, "box a", 5)
    f.text(182, 258, "convolution", "middle")
    f.rect(262, 230, 130, 46, "full b")
    f.text(327, 250, "tile of z in", "small middle")
    f.text(327, 266, "shared memory", "small middle")
    f.text(508, 258, "activation, pooling", "middle")
    f.arrow(226, 253, 258, 253, "b")
    f.arrow(394, 253, 438, 253, "b")
    f.path([(24, 342), (676, 342)], "mute", "thin")
    f.text(676, 360, "global memory", "small mute end")
    f.rect(60, 298, 40, 36, "box mute")
    f.text(80, 321, "x", "middle")
    f.rect(632, 310, 26, 24, "box c")
    f.text(645, 327, "y", "middle")
    f.path([(80, 298), (80, 253), (116, 253)], "ink", head=True)
    f.path([(600, 253), (645, 253), (645, 306)], "ink", head=True)
    f.text(350, 322, "no z: neither its bytes nor its four trips", "middle")
    return f


def folded() -> Figure:
    """Two filters become one."""
    f = Figure(
        300,
        "Folding: 5 by 5 convolution, then 2 by 2 mean, is one 6 by 6 convolution with stride 2",
        "Left, the four positions of a 5 by 5 filter under one pooling window together touch a 6 by 6 "
        "patch. Right, a 6 by 6 filter holds at each place how many of the four copies lie over it: 1 at "
        "the corners, 2 along the edges, 4 inside.",
    )
    cell, top = 28, 62
    f.text(40, 36, "5 x 5 filter at 4 places, then the mean", "head")
    f.grid(40, top, 6, 6, cell)
    for row in range(2):
        for column in range(2):
            color, dash = ("a", "b", "c", "ink")[2 * row + column], " dash" if row != column else ""
            inset = 2.5 * (2 * row + column)
            f.rect(
                40 + column * cell + inset, top + row * cell + inset, 5 * cell - 2 * inset, 5 * cell - 2 * inset,
                f"line {color}{dash}",
            )  # fmt: skip
    f.text(124, 254, "4 x 25 = 100 products", "middle")
    f.arrow(262, top + 84, 362, top + 84)
    f.lines(312, top + 46, ["add weights", "first"], "small middle")
    f.text(392, 36, "one 6 x 6 filter, stride 2", "head")
    for row in range(6):
        for column in range(6):
            count = (1 if row in (0, 5) else 2) * (1 if column in (0, 5) else 2)
            x, y = 392 + column * cell, top + row * cell
            f.rect(x, y, cell, cell, {1: "thin a", 2: "box a", 4: "full a"}[count])
            f.text(x + cell / 2, y + 19, str(count), "small middle")
    f.text(476, 254, "36 products", "middle")
    f.lines(
        578, 110, ["how many of", "the 4 copies", "lie here;", "each counts", "a quarter"], "small"
    )
    f.text(
        40,
        284,
        "A mean is a convolution with equal weights, and one convolution after another is one convolution.",
    )
    return f


def push_pull() -> Figure:
    """Errors from above, or fetched from below."""
    f = Figure(
        302,
        "Push against pull: two ways to bring errors down",
        "Left, push: a thread has neighbouring units above and adds what each hands down to the three cells "
        "below it; threads whose cells overlap write in turns. Right, pull: a thread has one cell below and "
        "gathers from the three units above it that used it.",
    )
    cell = 36
    for left, name in ((30, "push: from above"), (388, "pull: from below")):
        f.text(left, 32, name, "head")
        f.text(left + cell * 7 + 6, 88, "errors", "small mute")
        f.grid(left + cell, 66, 6, 1, cell)
        f.text(left, 164, "cells", "small mute")
        f.grid(left, 170, 8, 1, cell)
    for unit, color in ((2, "a"), (3, "b")):
        x = 30 + cell * (1 + unit)
        f.rect(x, 66, cell, cell, f"full {color}")
        for tap in range(3):
            f.arrow(
                x + cell / 2,
                104,
                30 + cell * (unit + tap + 0.5) + (6 if color == "b" else -6),
                166,
                color,
            )
    for index, color in enumerate("abbb"):
        f.rect(30 + cell * (2 + index), 170, cell, cell, f"box {color}")
        if index in (1, 2):
            f.rect(30 + cell * (2 + index), 170, cell, cell, "box a")
        f.text(30 + cell * (2.5 + index), 193, "+=", "middle")
    f.text(30 + cell * 3 - 6, 58, "thread 0", "small end")
    f.text(30 + cell * 5 + 6, 58, "thread 1", "small")
    f.lines(
        30, 236,
        ["A thread has units above and adds what they hand", "down to the block's cells in shared memory. Where",
         "the cells of two threads meet they take turns, with", "a barrier between."], "small",
    )  # fmt: skip
    cell_below = 3
    x = 388 + cell * cell_below
    f.rect(x, 170, cell, cell, "full c")
    f.text(x + cell / 2, 193, "=", "middle")
    for tap in range(3):
        unit = cell_below - tap
        f.rect(388 + cell * (1 + unit), 66, cell, cell, "box c")
        f.arrow(388 + cell * (1.5 + unit), 104, x + cell / 2 + 7 * (1 - tap), 166, "c")
    f.lines(
        388, 236,
        ["A thread has cells below and gathers from every", "unit that used them. It sums in registers, and",
         "writes each cell once: no turns, no barrier.", "Beyond the edge of the map above it adds zeros."], "small",
    )  # fmt: skip
    return f


def ring() -> Figure:
    """Rows in a circular buffer."""
    f = Figure(
        340,
        "Rung ring: source rows in a circular buffer",
        "A block walks down the map. Its shared memory holds as many rows as one step reads, each in the "
        "slot row modulo slots. A step loads only the rows that are new, over those that no later step "
        "reads.",
    )
    f.text(24, 34, "source map", "head")
    for row in range(10):
        f.rect(24, 50 + 24 * row, 120, 24, "thin mute")
        f.text(84, 67 + 24 * row, f"row {row}", "small middle")
    f.path([(156, 52), (156, 196)], "a")
    f.text(163, 128, "step 0", "small")
    f.path([(206, 100), (206, 244)], "b", "line dash")
    f.text(213, 176, "step 1", "small")
    f.path([(256, 148), (256, 288)], "c")
    f.text(263, 224, "step 2", "small")
    held = ((0, 1, 2, 3, 4, 5), (6, 7, 2, 3, 4, 5), (6, 7, 8, 9, 4, 5))
    for step, rows in enumerate(held):
        left = 350 + 116 * step
        f.text(left + 42, 34, f"step {step}", "head middle")
        for slot, row in enumerate(rows):
            is_new = step == 0 or row in ((6, 7), (8, 9))[step - 1]
            f.rect(left, 62 + 30 * slot, 84, 30, "full b" if is_new else "box a")
            f.text(left + 42, 82 + 30 * slot, f"row {row}", "middle")
    for slot in range(6):
        f.text(340, 82 + 30 * slot, str(slot), "small mute end")
    f.text(350, 54, "slots in shared memory", "small mute")
    f.rect(350, 264, 16, 16, "full b")
    f.text(372, 277, "loaded in this step", "small")
    f.rect(510, 264, 16, 16, "box a")
    f.text(532, 277, "still there", "small")
    f.text(
        24,
        322,
        "Row h lies in slot h mod 6. A plain tile would load all six rows again in every step.",
    )
    return f


def graph() -> Figure:
    """A step as one launch."""
    f = Figure(
        338,
        "Rung graph: the step recorded once and replayed",
        "Above, the host launches kernel after kernel and the device waits between them. Below, one launch "
        "starts the whole recorded step: kernels follow each other without gaps, and weight gradients run "
        "beside the errors' way down.",
    )
    f.text(24, 30, "a launch for each kernel", "head")
    f.text(24, 62, "host", "small mute")
    f.text(24, 106, "device", "small mute")
    for index in range(8):
        left = 84 + 72 * index
        f.rect(left, 46, 40, 22, "box mute", 3)
        f.path([(left + 40, 60), (left + 48, 86)], "mute", head=True)
        f.rect(left + 48, 90, 20 if index % 3 else 26, 24, "full a")
    f.text(84, 136, "The device waits until the next launch arrives.", "small")

    f.text(24, 176, "one launch for the recorded step", "head")
    f.text(24, 208, "host", "small mute")
    f.text(24, 252, "device", "small mute")
    f.rect(84, 192, 40, 22, "box mute", 3)
    f.path([(124, 206), (132, 232)], "mute", head=True)
    place = 134
    for width in (26, 20, 20, 26, 20, 20):
        f.rect(place, 236, width, 24, "full a")
        place += width
    for start, width in ((218, 44), (242, 40)):
        f.rect(start, 274 if start == 218 else 302, width, 22, "full b")
        f.path(
            [
                (start - 6, 262),
                (start - 6, 285 if start == 218 else 313),
                (start - 1, 285 if start == 218 else 313),
            ],
            "b",
        )
    f.path([(262, 285), (276, 285), (276, 263)], "b", head=True)
    f.path([(282, 313), (290, 313), (290, 263)], "b", head=True)
    f.rect(place + 6, 236, 22, 24, "full c")
    f.text(place + 40, 253, "update of all layers", "small")
    f.text(310, 290, "weight gradients, on branches: only the", "small")
    f.text(310, 307, "update waits for them", "small")
    return f


DIAGRAMS: tuple[Callable[[], Figure], ...] = (naive, tuned, fused, folded, push_pull, ring, graph)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code: 1 if ``--check`` finds a file that differs."""
    parser = argparse.ArgumentParser(description="Draw the diagrams of docs/ladder.md.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 if a file differs"
    )
    is_check = parser.parse_args(arguments).check
    code = 0
    for draw in DIAGRAMS:
        path, text = FOLDER / f"{draw.__name__}.svg", draw().svg()
        if not is_check:
            FOLDER.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            print(f"{path}: not what docs/draw_diagrams.py draws; run it", file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
