"""Plots of figures, as SVG."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

#: Size of a plot, in pixels.
WIDTH, HEIGHT = 900, 520
#: Lines of a grid across the vertical axis.
GRID = 5
#: Colors that most people can distinguish, by Okabe and Ito.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
#: Lines that lie upon each other are all seen when they are dashed in other ways.
_DASHES = ("none", "12 4", "6 4", "2 3", "12 4 2 4")
_FONT = "sans-serif"
#: Pixels of a dot.
DOT_RADIUS, LEAST_RADIUS = 8, 3


def lines(
    title: str,
    *,
    x_title: str,
    y_title: str,
    y_range: tuple[float, float],
    series: Mapping[str, Sequence[tuple[float, float]]],
) -> str:
    """Returns a line for each of the series, one or more, through its points (x, y): an SVG file.

    The same figures give the same file.
    """
    # Only plots need to wait for the library.
    import leather

    _dress(leather)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """A plot of points, each by its name, over a logarithmic axis."""

    title: str
    x_title: str
    y_title: str
    y_range: tuple[float, float]
    #: (x, y) by name; x is more than 0.
    points: Mapping[str, tuple[float, float]]


def fields(found: Sequence[Field]) -> str:
    """Returns one or more plots side by side, in which a name has the same look: an SVG file.

    The same figures give the same file.
    """
    import leather

    _dress(leather)
    names = sorted({name for one in found for name in one.points})
    grid = leather.Grid()
    for one in found:
        chart = leather.Chart(one.title)
        for name, (x, y) in one.points.items():
            color = _COLORS[names.index(name) % len(_COLORS)]
            # Where colors come again the dots are smaller.
            radius = max(DOT_RADIUS - 2 * (names.index(name) // len(_COLORS)), LEAST_RADIUS)
            point = [(math.log10(x), y)]
            chart.add_dots(point, name=name, fill_color=color, radius=radius)
        exponents = [math.log10(x) for x, _ in one.points.values()]
        first, last = math.floor(min(exponents)), max(math.ceil(max(exponents)), 1)
        last = max(last, first + 1)
        chart.add_x_scale(first, last)
        ticks = [float(exponent) for exponent in range(first, last + 1)]
        chart.add_x_axis(name=one.x_title, ticks=ticks, tick_formatter=_power)
        low, high = one.y_range
        chart.add_y_scale(low, high)
        lines = [low + (high - low) * number / GRID for number in range(GRID + 1)]
        chart.add_y_axis(name=one.y_title, ticks=lines, tick_formatter=_shown)
        grid.add_one(chart)
    drawn: str = grid.to_svg(width=WIDTH * min(len(found), 2), height=HEIGHT * -(-len(found) // 2))
    return drawn


def _dress(leather: Any) -> None:
    for part in ("title", "legend", "axis_title", "tick"):
        setattr(leather.theme, f"{part}_font_family", _FONT)
    leather.theme.background_color = "#ffffff"


def _power(value: float, _number: int, _ticks: int) -> str:
    return f"{10**value:,.10g}"


def _all_x(series: Mapping[str, Sequence[tuple[float, float]]]) -> list[float]:
    return sorted({x for points in series.values() for x, _ in points})


def _shown(value: float, _number: int, _ticks: int) -> str:
    return f"{value:g}"
