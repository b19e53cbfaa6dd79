"""Which questions are asked: as many as wanted, evenly, the same at each run."""

from hypothesis import given
from hypothesis import strategies as st

from evaluation.datasets import Document, Question
from evaluation.selection import Half, choose, half_of
from service.domain.log.chunks import Chunk, ChunkKind


def document(name: str, questions: int, length: int = 10) -> Document:
    return Document(
        id=name,
        chunks=(Chunk(kind=ChunkKind.TEXT, text="a" * length),),
        questions=tuple(
            Question(number=number, text="?", golds=("a",)) for number in range(1, questions + 1)
        ),
    )


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 60))
def test_shares_are_even_and_whole(held: list[int], limit: int) -> None:
    documents = [document(str(number), count) for number, count in enumerate(held)]
    chosen = choose(documents, limit)
    assert chosen == choose(documents, limit)
    counts = {one.id: len(one.questions) for one in chosen}
    assert sum(counts.values()) == min(limit, sum(held))
    assert list(counts) == sorted(counts, key=int), "in the order of the file"
    for number, most in enumerate(held):
        mine = counts.get(str(number), 0)
        # A document with fewer than another has none left, or lacks one of the last round.
        assert mine == most or mine >= max(counts.values()) - 1
    for one in chosen:
        asked = [question.number for question in one.questions]
        assert asked == sorted(set(asked))


def test_one_question_of_each_is_not_always_the_first() -> None:
    chosen = choose([document(str(number), 10) for number in range(10)], 10)
    asked = {one.questions[0].number for one in chosen}
    assert len(asked) >= 8


def test_the_shortest_come_first_when_asked() -> None:
    documents = [document("a", 2, 30), document("b", 2, 10), document("c", 2, 20)]
    assert [one.id for one in choose(documents, 2)] == ["a", "b"]
    assert [one.id for one in choose(documents, 2, shortest=True)] == ["b", "c"]


def test_no_more_documents_than_wanted() -> None:
    documents = [document(name, 3) for name in "abcd"]
    chosen = choose(documents, 5, most=2)
    assert [(one.id, len(one.questions)) for one in chosen] == [("a", 3), ("b", 2)]
    assert sum(len(one.questions) for one in choose(documents, 50, most=3)) == 9


def test_halves_depend_on_the_id_alone() -> None:
    halves = {name: half_of(document(name, 1)) for name in ("a", "b", "c", "d", "e", "f")}
    assert halves == {name: half_of(document(name, 3)) for name in halves}
    # The first byte of SHA-256: ca, 3e, 2e, 18, 3f and 25 (hexadecimal).
    assert list(halves.values()) == [Half.DEV] * 4 + [Half.TEST] * 2
    counts = [half_of(document(f"d{number}", 1)) for number in range(200)].count(Half.DEV)
    assert 80 < counts < 120
