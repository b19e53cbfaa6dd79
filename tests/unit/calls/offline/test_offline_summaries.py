"""The offline model's summaries: short, of every part, word for word, in any language."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.prompting.flows import Flow, ModelReply
from service.domain.prompting.tokens import estimate_tokens
from service.domain.tree.nodes import SummarySource
from service.domain.tree.spec import TreeSpec
from service.domain.tree.summarizing import Summary, compress, summarize
from service.llm.offline.model import complete

STORY = """\
The king of Norway rode out with his daughter Ingrid. It was cold. It was very cold. "Where \
is the wolf?" asked Ingrid. Nobody knew it. He said that it was so, and it was so.

In the forest they met Halvor, a hunter who had lost 300 crowns to a troll. He was sad. He \
was so sad that he said it again. The troll lived under the bridge of Trondheim.

They went on and on. The bridge was guarded by a wolf with a golden collar, which Ingrid \
knew from her childhood. It was he. It was he who was it.

At midnight Halvor stole the crowns back, and the king gave him a mill as a reward. So it \
was. So it was then, and then it was over.
"""


MODEL: dict[str, Any] = {"marker_key": b"k", "window_tokens": 32_768, "count": estimate_tokens}


def asked(flow: Flow[Summary]) -> str:
    """Returns what it says, or what needs no model."""
    try:
        (ask,) = next(flow)
    except StopIteration as end:
        made: Summary = end.value
        return made.text
    assert complete(ask) == complete(ask), "it is deterministic"
    return complete(ask)


def summary(text: str, max_tokens: int) -> str:
    return asked(summarize(text, spec=TreeSpec(summary_tokens=max_tokens), **MODEL))


def compressed(summaries: tuple[str, ...], max_tokens: int) -> str:
    return asked(compress(summaries, spec=TreeSpec(summary_tokens=max_tokens), **MODEL))


def test_it_takes_the_sentences_that_say_most_of_every_part_in_their_order() -> None:
    said = summary(STORY, 100)
    held = [
        "The king of Norway rode out with his daughter Ingrid.",
        "In the forest they met Halvor, a hunter who had lost 300 crowns to a troll.",
        "The troll lived under the bridge of Trondheim.",
        "At midnight Halvor stole the crowns back, and the king gave him a mill as a reward.",
    ]
    places = [said.find(one) for one in held]
    assert -1 not in places
    assert places == sorted(places)


def test_line_ends_of_a_page_and_titles_end_no_sentence() -> None:
    text = """\
Mr. Weston was a native of Highbury, and born of a respectable family, which for
the last two or three generations had been rising into gentility and property. He
had received a good education, but, on succeeding early in life to a small
independence, had become indisposed for any of the more homely pursuits. Mrs. J. Weston
came from London, where she had lived with her uncle, who owned three ships.
"""
    said = summary(text, 60)
    assert said.startswith(("Mrs. J. Weston came from London", "Mr. Weston was"))
    assert "\n" not in said
    assert all(one in " ".join(text.split()) for one in said.split(". ")[1:])


def test_a_sentence_continues_after_a_quotation() -> None:
    said = summary(STORY, estimate_tokens(STORY) - 20)
    assert '"Where is the wolf?" asked Ingrid.' in said


@pytest.mark.parametrize(
    ("text", "held"),
    [
        (
            "天气很好。天气非常好。李明昨天在北京的图书馆遇到了他的老师王芳。是的。是的。"
            "老师送给他一本关于唐朝历史的书。好的。",
            ["李明昨天在北京的图书馆遇到了他的老师王芳。"],
        ),
        (
            "Это было так. Иван нашёл в Новгороде старую карту с крестом. Да. Да, так. Карта вела "
            "к острову посреди Ладожского озера. Вот так.",
            ["Иван нашёл в Новгороде старую карту с крестом."],
        ),
    ],
)
def test_it_reads_any_language(text: str, held: list[str]) -> None:
    said = summary(text, estimate_tokens(text) * 2 // 3)
    assert all(one in said for one in held)


def test_a_text_without_sentences_is_shown_by_its_beginning() -> None:
    assert summary("x" * 400, 10) == "x" * 36 + " …"
    assert summary("1 2 3 4 5 6 7 8 " * 60, 6).startswith("1 2 3 4")


def test_a_short_text_is_its_own_summary() -> None:
    assert summary("The king rode out.", 16) == "The king rode out."


def test_each_child_has_a_share_of_a_parent() -> None:
    parts = tuple(part.strip() for part in STORY.split("\n\n"))
    said = compressed(parts, 100).splitlines()
    assert len(said) == len(parts)
    for name, one in zip(("Norway", "Halvor", "collar", "mill"), said, strict=True):
        assert name in one
    # What needs less than its share leaves the rest to the others.
    assert compressed(("Short.", *parts), 100).splitlines() == ["Short.", *said]


@given(
    texts=st.lists(st.text(max_size=300) | st.sampled_from([STORY, "市場。" * 90]), min_size=1),
    most=st.integers(1, 200),
)
def test_a_summary_is_never_too_long_and_always_the_same(texts: list[str], most: int) -> None:
    for text in texts:
        assert estimate_tokens(summary(text, most)) <= most
        assert summary(text, most) == summary(text, most)
    assert estimate_tokens(compressed(tuple(texts), most)) <= most


def test_its_summary_passes_for_a_model_s() -> None:
    flow = summarize(
        STORY,
        spec=TreeSpec(summary_tokens=64),
        marker_key=b"k",
        window_tokens=32_768,
        count=estimate_tokens,
    )
    (ask,) = next(flow)
    with pytest.raises(StopIteration) as stop:
        flow.send([ModelReply(text=complete(ask), model="offline/extractive")])
    made = stop.value.value
    assert made.made is SummarySource.MODEL
    assert "Halvor" in made.text
