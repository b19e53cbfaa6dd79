"""The checker of histories: a correct one passes, and each broken promise is told by its name."""

from tests.chaos.checker import check
from tests.unit.chaos.made_history import Maker


def test_a_history_that_the_model_made_keeps_all_promises() -> None:
    made = Maker().make()
    report = check(made.events, made.final)
    assert report.violations == []
    assert report.is_clean
    looked_at = ("chunks", "acks", "pages", "reads", "watches", "edits", "answers", "values")
    assert all(report.counts[name] > 0 for name in looked_at)
