"""Plots of figures, as SVG."""

from collections.abc import Mapping, Sequence
from itertools import cycle

#: Size of a plot, in pixels.
WIDTH, HEIGHT = 900, 520
#: Lines of a grid across the vertical axis.
GRID = 5
#: Colors that most people can tell from each other, by Okabe and Ito.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
#: Lines that lie upon each other are all seen when they are dashed in other ways.
_DASHES = ("none", "12 4", "6 4", "2 3", "12 4 2 4")
_FONT = "sans-serif"


def lines(
    title: str,
    *,
    x_title: str,
    y_title: str,
    y_range: tuple[float, float],
    series: Mapping[str, Sequence[tuple[float, float]]],
) -> str:
    """A line for each of the series, one or more, through its points (x, y): an SVG file.

    The same figures give the same file.
    """
    # Only who plots has to wait for the library.
    import leather

    for part in ("title", "legend", "axis_title", "tick"):
        setattr(leather.theme, f"{part}_font_family", _FONT)
    leather.theme.background_color = "#ffffff"
    chart = leather.Chart(title)
    looks = zip(cycle(_COLORS), cycle(_DASHES), strict=False)
    for (name, points), (color, dash) in zip(series.items(), looks, strict=False):
        chart.add_line(list(points), name=name, stroke_color=color, stroke_dasharray=dash)
    low, high = y_range
    chart.add_y_scale(low, high)
    grid = [low + (high - low) * number / GRID for number in range(GRID + 1)]
    chart.add_x_axis(name=x_title, ticks=_all_x(series), tick_formatter=_shown)
    chart.add_y_axis(name=y_title, ticks=grid, tick_formatter=_shown)
    drawn: str = chart.to_svg(width=WIDTH, height=HEIGHT)
    return drawn


def _all_x(series: Mapping[str, Sequence[tuple[float, float]]]) -> list[float]:
    return sorted({x for points in series.values() for x, _ in points})


def _shown(value: float, _number: int, _ticks: int) -> str:
    return f"{value:g}"
