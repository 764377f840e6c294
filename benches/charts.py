"""Charts as SVG that follow the viewer's preference for light or dark. Standard library only.

Input: numbers with names. Output: the text of an SVG file; the same numbers give the same text. Invariants:
every number that is drawn is also written, as text or as the tooltip of its element."""
import math
from dataclasses import dataclass
from html import escape

STYLE = """<style>
  text { font: 12px system-ui, sans-serif; fill: #57606a }
  .title { font-size: 14px; font-weight: 600; fill: #1f2328 }
  .background { fill: #ffffff }
  .ours { fill: #2f81f7 }
  .other { fill: #afb8c1 }
  .grid { stroke: #d0d7de; stroke-width: 1 }
  .line { fill: none; stroke-width: 2 }
  .dashed { stroke-dasharray: 5 4 }
  .first { stroke: #2f81f7 } .second { stroke: #bf5700 }
  .of-first { fill: #2f81f7 } .of-second { fill: #bf5700 }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1 }
    .title { fill: #f0f6fc }
    .background { fill: #0d1117 }
    .other { fill: #484f58 }
    .grid { stroke: #30363d }
    .second { stroke: #f0883e } .of-second { fill: #f0883e }
  }
</style>"""
ROW, LABELS, PANEL, VALUE, TOP = 24, 270, 180, 56, 60


def svg(width: float, height: float, title: str, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}" role="img">'
    title = f"<title>{escape(title)}</title>"
    background = f'<rect class="background" width="{width:g}" height="{height:g}"/>'
    return "\n".join([head, title, STYLE, background, *parts, "</svg>"]) + "\n"


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{kind} text-anchor="{anchor}">{escape(content)}</text>'


@dataclass(frozen=True)
class Panel:
    """Bars of one quantity, one per row; None means that there is no reading."""

    title: str
    values: list[float | None]
    digits: int


def bars(title: str, rows: list[tuple[str, bool]], panels: list[Panel]) -> str:
    """A bar chart. `rows` are names, with a flag for our own systems; each panel has a bar in each row."""
    parts = [text(16, 26, title, "title")]
    for index, (name, _) in enumerate(rows):
        parts.append(text(LABELS - 10, TOP + index * ROW + 16, name, anchor="end"))
    for column, panel in enumerate(panels):
        left = LABELS + column * PANEL
        room = PANEL - VALUE
        parts.append(text(left, TOP - 8, panel.title))
        most = max((value for value in panel.values if value is not None), default=1)
        for index, ((name, is_ours), value) in enumerate(zip(rows, panel.values, strict=True)):
            if value is None:
                continue
            top, length = TOP + index * ROW, max(1, room * value / most)
            written = f"{value:.{panel.digits}f}"
            said = f"<title>{escape(name)}: {escape(panel.title)} {written}</title>"
            kind = "ours" if is_ours else "other"
            parts.append(f'<rect class="{kind}" x="{left}" y="{top + 4}" width="{length:.1f}" height="{ROW - 8}">{said}</rect>')
            parts.append(text(left + length + 5, top + 16, written))
    return svg(LABELS + len(panels) * PANEL, TOP + len(rows) * ROW + 16, title, parts)


@dataclass(frozen=True)
class Curve:
    """Points (x, y) with a name. Curves of the same group have the same colour."""

    name: str
    points: list[tuple[float, float]]
    group: str
    dashed: bool


def ticks(low: float, high: float) -> list[float]:
    """Round numbers on a logarithmic axis."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [digit * 10.0**decade for decade in decades for digit in (1, 2, 5) if low <= digit * 10.0**decade <= high]


def steps(high: float) -> list[float]:
    """Four to nine round numbers on an axis that begins at zero."""
    size = 10 ** math.floor(math.log10(high))
    size = next(size * part for part in (1, 0.5, 0.2, 0.1) if high / (size * part) >= 4)
    return [size * index for index in range(int(high / size) + 1)]


def curves(title: str, axes: tuple[str, str], lines: list[Curve]) -> str:
    """Lines over a horizontal axis that begins at zero and a logarithmic vertical axis."""
    width, height, left, right, top, bottom = 760, 420, 64, 170, 56, 52
    highest_x = max(x for line in lines for x, _ in line.points) * 1.05
    ys = [y for line in lines for _, y in line.points]
    low, high = min(ys) / 1.2, max(ys) * 1.2

    def place(x: float, y: float) -> tuple[float, float]:
        across = left + x / highest_x * (width - left - right)
        return across, height - bottom - math.log(y / low) / math.log(high / low) * (height - top - bottom)

    parts = [text(16, 26, title, "title"), text(left, top - 10, axes[1]),
             text((left + width - right) / 2, height - 12, axes[0], anchor="middle")]
    for y in ticks(low, high):
        _, at = place(0, y)
        parts.append(f'<line class="grid" x1="{left}" y1="{at:.1f}" x2="{width - right}" y2="{at:.1f}"/>')
        parts.append(text(left - 8, at + 4, f"{y:g}", anchor="end"))
    for x in steps(highest_x):
        at, _ = place(x, low)
        parts.append(text(at, height - bottom + 18, f"{x:g}", anchor="middle"))
    for line in lines:
        dashed = " dashed" if line.dashed else ""
        points = [(*place(x, y), x, y) for x, y in line.points]
        path = " ".join(f"{across:.1f},{up:.1f}" for across, up, _, _ in points)
        parts.append(f'<polyline class="line {line.group}{dashed}" points="{path}"/>')
        for across, up, x, y in points:
            said = f"<title>{escape(line.name)}: {y:.0f} at {x:.1f}</title>"
            parts.append(f'<circle class="of-{line.group}" cx="{across:.1f}" cy="{up:.1f}" r="3.5">{said}</circle>')
    ends = sorted(((place(*line.points[-1])[1], line) for line in lines), key=lambda end: end[0])
    before = -math.inf
    for up, line in ends:
        # Names are at least 15 pixels apart, even if the lines end closer together.
        before = max(up + 4, before + 15)
        parts.append(text(width - right + 8, before, line.name, f"of-{line.group}"))
    return svg(width, height, title, parts)


@dataclass(frozen=True)
class Point:
    """A circle at (x, y) with a name, whose area is proportional to `size`."""

    name: str
    x: float
    y: float
    size: float


def overlaps(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether two boxes (left, top, right, bottom) have a place in common."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def scatter(title: str, axes: tuple[str, str], points: list[Point]) -> str:
    """Circles over a logarithmic horizontal axis and a vertical axis that begins below the lowest one."""
    width, height, left, right, top, bottom = 860, 460, 64, 170, 56, 52
    low, high = min(point.x for point in points) / 1.3, max(point.x for point in points) * 1.3
    ys = [point.y for point in points]
    room = (max(ys) - min(ys)) * 0.08 or 1
    base, peak = min(ys) - room, max(ys) + room

    def place(x: float, y: float) -> tuple[float, float]:
        across = left + math.log(x / low) / math.log(high / low) * (width - left - right)
        return across, height - bottom - (y - base) / (peak - base) * (height - top - bottom)

    parts = [text(16, 26, title, "title"), text(left, top - 10, axes[1]),
             text((left + width - right) / 2, height - 12, axes[0], anchor="middle")]
    for x in ticks(low, high):
        at, _ = place(x, base)
        parts.append(f'<line class="grid" x1="{at:.1f}" y1="{top}" x2="{at:.1f}" y2="{height - bottom}"/>')
        parts.append(text(at, height - bottom + 18, f"{x:g}", anchor="middle"))
    size = 10 ** math.floor(math.log10(peak - base))
    size = size if (peak - base) / size >= 3 else size / 4
    for index in range(math.ceil(base / size), math.floor(peak / size) + 1):
        _, at = place(low, index * size)
        parts.append(f'<line class="grid" x1="{left}" y1="{at:.1f}" x2="{width - right}" y2="{at:.1f}"/>')
        parts.append(text(left - 8, at + 4, f"{index * size:g}", anchor="end"))
    largest = max(point.size for point in points)
    circles = [(*place(point.x, point.y), max(3.0, 18 * math.sqrt(point.size / largest))) for point in points]
    taken = [(across - radius, up - radius, across + radius, up + radius) for across, up, radius in circles]
    for point, (across, up, radius) in zip(points, circles, strict=True):
        said = f"<title>{escape(point.name)}: {point.y:g}, {point.x:.1f} s, {point.size:.1f} GB</title>"
        parts.append(f'<circle class="of-first" fill-opacity="0.55" cx="{across:.1f}" cy="{up:.1f}" r="{radius:.1f}">{said}</circle>')
        length = 6.4 * len(point.name)
        # The name is where it covers nothing: to the right, to the left, or a little above or below.
        starts = [(start, up + 4 + step) for step in (0, -14, 14, -28, 28, -42, 42)
                  for start in (across + radius + 4, across - radius - 4 - length)]
        boxes = [(start, at - 10, start + length, at + 3) for start, at in starts]
        free = [box for box in boxes if box[0] > left and not any(overlaps(box, other) for other in taken)]
        box = (free or boxes)[0]
        taken.append(box)
        parts.append(text(box[0], box[3] - 3, point.name))
    return svg(width, height, title, parts)
