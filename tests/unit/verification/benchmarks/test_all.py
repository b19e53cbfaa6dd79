"""`make bench` runs every benchmark there is."""

from verification.benchmarks.__main__ import NAMES
from verification.benchmarks.table import SIZES


def test_the_table_has_every_benchmark() -> None:
    assert set(SIZES) == set(NAMES) - {"table"}
