"""A process is not ready after three failures in a row, and ready again after two successes."""

from hypothesis import given
from hypothesis import strategies as st

from service.usecases.operations.readiness import Readiness


def changes(probes: str) -> str:
    """Returns what changed at each probe: + and - are probes that succeed and fail."""
    readiness = Readiness()
    changed = [readiness.note("" if one == "+" else "gone") for one in probes]
    return "".join("x" if one else "." for one in changed)


def test_a_blip_changes_nothing() -> None:
    assert changes("+--+--+-+") == "........."


def test_three_failures_and_two_successes_count() -> None:
    assert changes("---") == "..x"
    assert changes("-----") == "..x.."
    assert changes("---+-+-++") == "..x.....x"
    assert changes("---++---") == "..x.x..x"


def test_the_trouble_is_the_newest() -> None:
    readiness = Readiness()
    for trouble in ("a", "b", "c"):
        readiness.note(trouble)
    assert (readiness.ready, readiness.trouble) == (False, "c")


@given(st.text("+-", max_size=60))
def test_what_it_says_was_seen_twice_in_a_row_since_it_said_otherwise(probes: str) -> None:
    readiness = Readiness()
    for number, one in enumerate(probes, start=1):
        changed = readiness.note("" if one == "+" else "gone")
        if changed:
            assert probes[:number].endswith("++" if readiness.ready else "---")
