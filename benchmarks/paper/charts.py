"""Pictures of the paper's page as SVG: lines over numbers, and bars by category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

LEFT, TOP, WIDE, TALL = 70, 34, 560, 300
SHOWN = 24
"""Names of lines that fit beside a picture."""

Lines = Mapping[str, Mapping[float, float]]
"""y by x, of each line."""


def color(i: int) -> str:
    """Colours that stay apart, the golden angle along the circle."""
    return f"hsl({i * 137.5 % 360:.0f} 60% 42%)"


def _frame(title: str, below: str, top: float, unit: str) -> list[str]:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {TOP + TALL + 50}"'
        ' font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{LEFT}" y="18" font-size="13">{escape(title)}</text>',
        f'<text x="{LEFT}" y="{TOP + TALL + 36}">{escape(below)}</text>',
        f'<text x="{LEFT - 6}" y="{TOP - 6}" text-anchor="end">{escape(unit)}</text>',
    ]
    for i in range(5):
        y = TOP + TALL * (1 - i / 4)
        parts.append(f'<path d="M{LEFT} {y:.1f}h{WIDE}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top * i / 4:.3g}</text>'
        )
    return parts


def _names(names: Sequence[str]) -> list[str]:
    return [
        f'<text x="{LEFT + WIDE + 14}" y="{TOP + 10 + 13 * i}" fill="{color(i)}">'
        f"{escape(name)}</text>"
        for i, name in enumerate(names[:SHOWN])
    ]


def line_chart(lines: Lines, title: str, x_label: str, unit: str, ticks: int = 12) -> str:
    """Lines over x, y from 0; at most `ticks` numbers below."""
    xs = sorted({x for points in lines.values() for x in points})
    top = max((v for points in lines.values() for v in points.values()), default=1.0) or 1.0
    low, high = xs[0], xs[-1]

    def at(x: float, y: float) -> tuple[float, float]:
        share = (x - low) / (high - low) if high > low else 0.5
        return LEFT + WIDE * share, TOP + TALL * (1 - y / top)

    parts = _frame(title, x_label, top, unit)
    shown = xs if len(xs) <= ticks else [low + (high - low) * i / 6 for i in range(7)]
    for x in shown:
        px, _ = at(x, 0)
        parts.append(
            f'<text x="{px:.1f}" y="{TOP + TALL + 16}" text-anchor="middle">{x:.4g}</text>'
        )
    for i, points in enumerate(lines.values()):
        places = [at(x, y) for x, y in sorted(points.items())]
        path = "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
        parts.append(f'<path d="M{path}" fill="none" stroke="{color(i)}" stroke-width="1.8"/>')
        if len(places) <= 40:
            parts += [
                f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.6" fill="{color(i)}"/>' for a, b in places
            ]
    return "\n".join([*parts, *_names(list(lines)), "</svg>\n"])


def bar_chart(
    groups: Mapping[str, Mapping[str, float]],
    title: str,
    x_label: str,
    unit: str,
    *,
    stacked: bool = False,
) -> str:
    """Bars by group and name, side by side or (parts of a whole) on top of each other."""
    names = list(dict.fromkeys(n for bars in groups.values() for n in bars))
    heights = [sum(b.values()) if stacked else max(b.values()) for b in groups.values()]
    top = max(heights, default=1.0) or 1.0
    parts = _frame(title, x_label, top, unit)
    room = WIDE / max(1, len(groups))
    for g, (group, bars) in enumerate(groups.items()):
        left, width, base = LEFT + room * (g + 0.1), room * 0.8, 0.0
        for i, name in enumerate(names):
            value = bars.get(name, 0.0)
            tall = TALL * value / top
            w = width if stacked else width / len(names)
            x = left if stacked else left + w * i
            parts.append(
                f'<rect x="{x:.1f}" y="{TOP + TALL - base - tall:.1f}" width="{w:.1f}"'
                f' height="{tall:.1f}" fill="{color(i)}"><title>{escape(group)}, {escape(name)}:'
                f" {value:.4g}</title></rect>"
            )
            base += tall if stacked else 0.0
        parts.append(
            f'<text x="{left + width / 2:.1f}" y="{TOP + TALL + 16}" text-anchor="middle">'
            f"{escape(group)}</text>"
        )
    return "\n".join([*parts, *_names(names), "</svg>\n"])
