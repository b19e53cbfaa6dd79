"""Plots of figures, as SVG."""

from collections.abc import Mapping, Sequence

#: Size of a plot, in pixels.
WIDTH, HEIGHT = 900, 520


def lines(
    title: str,
    *,
    x_title: str,
    y_title: str,
    y_range: tuple[float, float],
    series: Mapping[str, Sequence[tuple[float, float]]],
) -> bytes:
    """A line for each of the series, through its points (x, y), as an SVG file.

    The same figures give the same bytes.
    """
    # Only who plots has to wait for the library.
    import pygal
    from pygal.style import LightStyle

    chart = pygal.XY(
        title=title,
        x_title=x_title,
        y_title=y_title,
        range=y_range,
        # It fetches scripts from the network otherwise.
        js=(),
        style=LightStyle,
        width=WIDTH,
        height=HEIGHT,
        explicit_size=True,
        no_prefix=True,
        legend_at_bottom=True,
        legend_at_bottom_columns=max(1, len(series)),
        x_labels=sorted({x for points in series.values() for x, _ in points}),
    )
    for name, points in series.items():
        chart.add(name, list(points))
    drawn: bytes = chart.render()
    return drawn
