"""Outlines of trees: summaries are cut to fit a message."""

from hypothesis import example, given
from hypothesis import strategies as st

from service.usecases.tree.outline import shortened

TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=60), min_size=1, max_size=8)


@given(texts=TEXTS, room=st.integers(0, 300))
@example(texts=["ä" * 40, "b"], room=41)
def test_summaries_fit_and_those_that_fit_stay(texts: list[str], room: int) -> None:
    shown = shortened(texts, room)
    assert len(shown) == len(texts)
    share = room // len(texts)
    if sum(len(text.encode()) for text in texts) <= room:
        assert shown == texts
        return
    for text, cut in zip(texts, shown, strict=True):
        if len(text.encode()) <= share:
            assert cut == text
        else:
            # The mark itself stays, however small the share is.
            assert len(cut.encode()) <= max(share, len("…".encode()))
            assert cut.endswith("…")
            assert text.startswith(cut[:-1])
