"""`make bench` runs every benchmark there is."""

from tests.benchmarks.__main__ import NAMES
from tests.benchmarks.table import SIZES


def test_the_table_has_every_benchmark() -> None:
    assert set(SIZES) == set(NAMES) - {"table"}
