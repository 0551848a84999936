"""SVG by hand: shapes and text in a few styles, for light and dark screens and for paper.

Text is text, colours are Okabe and Ito's and never the only sign, and a figure brings its own ground, light or dark as
the reader's system wants it, always light on paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH = 700

LIGHT = {
    "ground": "#ffffff",
    "ink": "#1f2328",
    "mute": "#59636e",
    "a": "#0072b2",
    "b": "#d55e00",
    "c": "#00795a",
}
DARK = {
    "ground": "#151b23",
    "ink": "#f0f6fc",
    "mute": "#a5aeb8",
    "a": "#56b4e9",
    "b": "#f0a04b",
    "c": "#2bc39a",
}


def _style(colors: dict[str, str]) -> str:
    inks = "".join(
        f".{name}{{stroke:{colors[name]};fill:{colors[name]}}}.arrow-{name}{{fill:{colors[name]}}}"
        for name in ("ink", "mute", "a", "b", "c")
    )
    return f".ground{{fill:{colors['ground']}}}{inks}text{{fill:{colors['ink']}}}text.mute{{fill:{colors['mute']}}}"


STYLE = (
    "text{font:13px system-ui,'Segoe UI','DejaVu Sans',sans-serif;stroke:none!important}"
    ".head{font-weight:600;font-size:14px}.small{font-size:12px}.middle{text-anchor:middle}.end{text-anchor:end}"
    ".box{fill-opacity:.14;stroke-width:1.3}.full{fill-opacity:.45;stroke-width:1.3}.frame{fill-opacity:0;stroke-width:2.4}"
    ".thin{fill-opacity:0;stroke-width:.8}.line{fill-opacity:0;stroke-width:1.6}.dash{stroke-dasharray:5 3}"
    f"{_style(LIGHT)}@media screen and (prefers-color-scheme:dark){{{_style(DARK)}}}"
)


class Figure:
    """One diagram: shapes in the order they are added."""

    def __init__(self, height: int, title: str, description: str) -> None:
        self._height = height
        self._title, self._description = title, description
        self._parts: list[str] = []

    def rect(
        self, x: float, y: float, width: float, height: float, style: str, round_by: float = 0
    ) -> None:
        """``style`` is a kind (box, full, frame, thin) and a colour (ink, mute, a, b, c)."""
        corner = f' rx="{round_by:g}"' if round_by else ""
        self._parts.append(
            f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"{corner}/>'
        )

    def text(self, x: float, y: float, words: str, style: str = "") -> None:
        """One line; y is its foot. Styles: head, small, mute, middle, end."""
        kind = f' class="{style}"' if style else ""
        self._parts.append(f'<text{kind} x="{x:g}" y="{y:g}">{escape(words)}</text>')

    def lines(self, x: float, y: float, words: Sequence[str], style: str = "") -> None:
        """Lines of text below each other."""
        for index, line in enumerate(words):
            self.text(x, y + 17 * index, line, style)

    def path(
        self,
        points: Sequence[tuple[float, float]],
        color: str,
        style: str = "line",
        head: bool = False,
    ) -> None:
        """A run of straight lines, with an arrow's head at the end if wanted."""
        way = " ".join(f"{'L' if index else 'M'}{x:g} {y:g}" for index, (x, y) in enumerate(points))
        end = f' marker-end="url(#{color})"' if head else ""
        self._parts.append(f'<path class="{style} {color}" d="{way}"{end}/>')

    def arrow(self, x0: float, y0: float, x1: float, y1: float, color: str = "ink") -> None:
        """A straight arrow."""
        self.path([(x0, y0), (x1, y1)], color, head=True)

    def grid(
        self, x: float, y: float, columns: int, rows: int, cell: float, style: str = "thin mute"
    ) -> None:
        """Cells of a map."""
        for row in range(rows):
            for column in range(columns):
                self.rect(x + column * cell, y + row * cell, cell, cell, style)

    def svg(self) -> str:
        """The whole file."""
        markers = "".join(
            f'<marker id="{color}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path class="arrow-{color}" d="M0 0.5L8 4L0 7.5z"/></marker>'
            for color in ("ink", "mute", "a", "b", "c")
        )
        size = f'viewBox="0 0 {WIDTH} {self._height}" width="{WIDTH}" height="{self._height}"'
        body = "\n".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title description">\n'
            f'<title id="title">{escape(self._title)}</title>\n'
            f'<desc id="description">{escape(self._description)}</desc>\n'
            f"<style>{STYLE}</style>\n<defs>{markers}</defs>\n"
            f'<rect class="ground" width="{WIDTH}" height="{self._height}" rx="6"/>\n{body}\n</svg>\n'
        )
