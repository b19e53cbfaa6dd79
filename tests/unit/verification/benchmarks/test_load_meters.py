"""What the benchmarks of load say about durations, memory and each other."""

import os
import time

from verification.benchmarks.load_meters import Sizes, family, percentiles, resident_bytes, slope
from verification.benchmarks.table import rows


def test_percentiles_of_durations() -> None:
    found = percentiles([each / 1000 for each in range(1, 102)])
    assert found == {
        "p50_ms": 51.0,
        "p95_ms": 96.0,
        "p99_ms": 100.0,
        "max_ms": 101.0,
        "count": 101,
    }
    assert percentiles([0.5])["p99_ms"] == 500.0
    assert percentiles([]) == {"count": 0}


def test_a_slope_leaves_steps_and_spikes_alone() -> None:
    flat = [(float(at), 100.0) for at in range(50)]
    flat[20] = (20.0, 900.0)
    assert slope(flat) == 0
    assert slope([(float(at), 3.0 * at + (at == 7) * 50) for at in range(50)]) == 3
    assert slope([(1.0, 5.0)]) == 0


def test_memory_of_a_process_and_of_one_that_has_ended() -> None:
    assert resident_bytes(os.getpid()) > 1_000_000
    assert resident_bytes(2**22 + 1) == 0
    assert os.getpid() in family(os.getppid())
    sizes = Sizes()
    sizes.look({"this": os.getpid(), "gone": 2**22 + 1})
    assert set(sizes.figures()) == {"this"}
    assert sizes.of["this"][0][0] <= time.monotonic()


def test_the_table_has_a_line_for_each_also_for_one_that_broke() -> None:
    found = rows(
        [
            {"name": "append", "value": 0.7, "goal": ">= 0.5"},
            {"name": "words", "value": 12},
            {"name": "soak", "error": "it ended with 1"},
        ]
    )
    assert [line.split(maxsplit=2) for line in found] == [
        ["benchmark", "value", "goal"],
        ["append", "0.7", ">= 0.5"],
        ["words", "12"],
        ["soak", "broke", "it ended with 1"],
    ]
