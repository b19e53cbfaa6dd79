"""Datasets are read, and a fault is one clear error with its line."""

import json
from pathlib import Path
from typing import Any

import pytest

from evaluation.datasets import DatasetError, Document, read
from service.domain.log.chunks import ChunkKind

DOCUMENT: dict[str, Any] = {
    "id": "one",
    "chunks": [{"n": 1, "text": "First."}, {"n": 2, "text": ""}, {"n": 3, "text": "Third."}],
    "questions": [{"q": "Which?", "gold": "third", "evidence": {"sections": [1, 3, 99]}}],
}


def read_lines(folder: Path, *lines: object) -> list[Document]:
    path = folder / "set.jsonl"
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines))
    return list(read(path))


def changed(**changes: Any) -> dict[str, Any]:
    kept = {**DOCUMENT, **changes}
    return {key: value for key, value in kept.items() if value is not None}


def asking(**question: Any) -> dict[str, Any]:
    return changed(questions=[{"q": "Which?", "gold": "a", **question}])


def test_a_long_name_of_a_speaker_is_cut(tmp_path: Path) -> None:
    title = "The Honourable Member for a Constituency with a Name of Its Own" * 2
    turns = [{"speaker": title, "text": "Hear, hear."}]
    (document,) = read_lines(tmp_path, changed(chunks=None, turns=turns))
    assert document.chunks[0].role == title[:64]


def test_empty_chunks_are_left_out_and_evidence_follows(tmp_path: Path) -> None:
    (document,) = read_lines(tmp_path, DOCUMENT, "  ")
    assert [chunk.text for chunk in document.chunks] == ["First.", "Third."]
    (question,) = document.questions
    assert question.golds == ("third",)
    assert question.evidence == {1, 2}


def test_turns_are_messages_and_spans_include_both_ends(tmp_path: Path) -> None:
    turns = [{"i": n, "speaker": "Ann", "text": f"Turn {n}."} for n in range(5)]
    questions = [{"q": "?", "gold": "a", "evidence": {"turn_spans": [["1", "2"], [4, 4]]}}]
    (document,) = read_lines(tmp_path, {"id": "m", "turns": turns, "questions": questions})
    assert document.chunks[0].kind is ChunkKind.MESSAGE
    assert document.chunks[1].as_text() == "Ann: Turn 1."
    assert document.questions[0].evidence == {2, 3, 5}


def test_steps_and_texts(tmp_path: Path) -> None:
    steps = [{"observation": "saw", "thought": "thought", "action": "did"}, {"action": ""}]
    text = "A sentence of the text. " * 200
    stepped, long = read_lines(
        tmp_path,
        changed(id="s", chunks=None, steps=steps),
        changed(id="t", chunks=None, text=text),
    )
    assert [chunk.action for chunk in stepped.chunks] == ["did"]
    assert len(long.chunks) > 2
    assert "".join(chunk.text for chunk in long.chunks) == text


def test_the_evidence_of_a_run_is_where_the_answer_stands(tmp_path: Path) -> None:
    steps = [
        {"observation": "Sam lives in Oslo.", "thought": "Now Ann.", "action": "Search[Ann]"},
        {"observation": "", "thought": "Nothing yet.", "action": "Look"},
        {"observation": "Ann has no house in oslo; she left.", "thought": "no"},
    ]
    asked = [
        {"q": "Where?", "gold": "Oslo"},
        {"q": "Both?", "gold": "No"},
        {"q": "Who?", "gold": "Ben"},
        {"q": "Here?", "gold": "Oslo", "evidence": {"sections": [2]}},
    ]
    run, story = read_lines(
        tmp_path,
        changed(chunks=None, steps=steps, questions=asked),
        changed(id="two", questions=[{"q": "?", "gold": "First."}]),
    )
    found = [set(one.evidence) for one in run.questions]
    assert found == [{1, 3}, set(), set(), {2}], "yes and no stand anywhere"
    assert not story.questions[0].evidence, "what others leave out is left out"


def test_golds_are_kept_once_and_letters_name_options(tmp_path: Path) -> None:
    several, lettered = read_lines(
        tmp_path,
        asking(golds=["a", "b"]),
        {**asking(gold="(b)", options=["x", "y"]), "id": "two"},
    )
    assert several.questions[0].golds == ("a", "b")
    assert lettered.questions[0].golds == ("y",)


@pytest.mark.parametrize(
    ("line", "about"),
    [
        ('{"id": }', "line 2 is not JSON: Expecting value at character 8"),
        ("[" * 100_000, "line 2 is nested too deeply"),
        ("[]", "line 2: a document is a JSON object"),
        (changed(id=None), "id is missing"),
        (changed(id=7), "id is not a text"),
        (changed(id="first"), "the id 'first' is that of line 1 already"),
        (changed(chunks=None), "a document has its text in one of chunks, turns, steps, text"),
        (changed(text="more"), "a document has its text in one of"),
        (changed(chunks=[]), "chunks holds no text"),
        (changed(chunks=["a"]), "chunks[0] is not an object"),
        (changed(chunks=[{"text": 1}]), "chunks[0].text is not a text"),
        (changed(chunks=[{"text": "a\0"}]), "chunks[0].text holds a NUL character"),
        (changed(chunks=[{"text": "\ud800"}]), "chunks[0].text holds half of a surrogate pair"),
        (changed(chunks=None, turns=[{"text": "a"}]), "turns[0].speaker is missing"),
        (changed(questions={}), "questions is not a list"),
        (changed(questions=[1]), "questions[0] is not an object"),
        (changed(questions=[{"q": "?"}]), "questions[0] has no gold"),
        (asking(q=" "), "questions[0].q is empty"),
        (asking(q="a" * 8193), "questions[0].q has more than 8,192 bytes"),
        (asking(options=["a"]), "questions[0].options has 1 options"),
        (asking(options=["a", "a"]), "questions[0].options has an option twice"),
        (asking(gold="c", options=["a", "b"]), "questions[0].gold is none of the options"),
        (asking(evidence=[1]), "questions[0].evidence is not an object"),
        (asking(evidence={"sections": ["x"]}), "holds what is no whole number"),
        (asking(evidence={"turn_spans": [[1]]}), "has a span without two ends"),
    ],
)
def test_what_is_not_so_is_one_sentence_with_its_line(
    tmp_path: Path, line: object, about: str
) -> None:
    with pytest.raises(DatasetError) as caught:
        read_lines(tmp_path, changed(id="first"), line)
    assert "line 2" in str(caught.value)
    assert about in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"cannot read .*: No such file"):
        read(tmp_path / "none.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b"\xe9")
    with pytest.raises(DatasetError, match="line 1 is not UTF-8 at byte 0"):
        read(tmp_path / "latin.jsonl")
    with pytest.raises(DatasetError, match=r"set.jsonl has no questions"):
        read_lines(tmp_path, changed(questions=[]))
