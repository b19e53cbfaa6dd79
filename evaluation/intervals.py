"""Computes how far a mean over questions would differ with other questions of the same kind."""

from collections.abc import Sequence

#: How often questions are drawn again.
DRAWS = 2000
#: The percentiles between which 95 % of the means lie.
_LOW, _HIGH = 2.5, 97.5


def interval(figures: Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % interval of the mean of figures, one or more, by the bootstrap.

    As many figures as there are get drawn again and again, each drawing with replacement; the
    interval is that of the means (Efron and Tibshirani, An Introduction to the Bootstrap, 1993,
    section 13.3). The same figures give the same interval.
    """
    # Late: numpy loads slowly, and most commands of the command line need none.
    import numpy

    drawn = numpy.random.default_rng(1).integers(0, len(figures), (DRAWS, len(figures)))
    means = numpy.asarray(figures, dtype=float)[drawn].mean(axis=1)
    low, high = numpy.percentile(means, (_LOW, _HIGH)).tolist()
    return low, high
