"""Texts on which patterns went back and forth: with the pattern of before each takes minutes.

No time is asserted; what is asserted comes at once, or the run ends in its own limit.
"""

import pytest

from evaluation.baselines.prompts import read_answer as read_baseline
from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.prism.schemas.source import parse_source
from service.domain.prompting.asking import SaidAnswer
from service.domain.search.recall import completes
from service.domain.state.asking import read_answer
from service.domain.values.errors import SchemaInvalid
from service.domain.values.paths import MAX_PATH_CHARACTERS, Path, PathError
from service.llm.offline.filler import _ITEM
from service.llm.offline.texts import prose, sections, sentences
from service.telemetry.logs import hide_secrets

LONG = 256 * 1024


def test_a_decorator_after_which_blanks_end_in_something_else() -> None:
    source = f"@a{' ' * 60_000}!\nclass A:\n    a: str\n"
    with pytest.raises(SchemaInvalid, match="no Python class"):
        parse_source(source)


def test_a_bracket_with_nothing_but_blanks() -> None:
    with pytest.raises(PathError, match="neither a dot nor a bracket"):
        Path.parse("$[" + "\t" * (MAX_PATH_CHARACTERS - 3) + "x")


def test_lines_that_could_all_begin_an_answer() -> None:
    assert read_baseline("x" + ".\n" * (LONG // 2) + "answer: yes", ()) == "yes"


def test_a_long_number_where_positions_are_said() -> None:
    reply = f"Answer: it is there\nSteps: {'1' * 200} are many!"
    assert read_answer(reply, (1, 2)) == SaidAnswer(text=reply.removeprefix("Answer: "))


def test_runs_of_positions_that_all_name_everything() -> None:
    known = range(1, 5001)
    said = read_answer("[ANSWER] x\n[STEPS]\n" + "1-99999, " * 11_000, known)
    assert said == SaidAnswer(text="x", sources=tuple(known))


def test_positions_are_named_in_their_order_and_once() -> None:
    said = read_answer("[ANSWER] x\n[STEPS]\n7, 2-4, 3, 1-9", range(1, 9))
    assert said == SaidAnswer(text="x", sources=(7, 2, 3, 4, 1, 5, 6, 8))


def test_a_long_word_in_a_log() -> None:
    event = hide_secrets(None, "", {"cause": "a" * LONG, "at": "redis://me:secret@host/1"})
    assert event == {"cause": "a" * LONG, "at": "redis://me:***@host/1"}


def test_texts_of_blanks_for_the_offline_model() -> None:
    line = "word " * 15
    blank = "\n".join([line] * 8) + "\n" + (" " * 90 + "\n") * 2000
    assert len(sentences(blank)) == 1
    assert list(prose(blank)) == []
    assert len(sentences("A." + " " * LONG + "b")) == 1
    assert not sections("# ab" + " " * LONG + "x")
    assert sections("#  Head  ##  \nbody")[0].name == "Head"


def test_a_line_of_commas_below_a_name_of_a_table() -> None:
    (table,) = sections("Table: a\n" + ",." * (LONG // 2))
    assert table.sentences == ()


def test_answers_of_blanks() -> None:
    assert _ITEM.split(" " * LONG + "x") == [" " * LONG + "x"]
    assert _ITEM.split("a , b and c\n- d") == ["a", "b", "c", "d"]


@pytest.mark.parametrize("filler", ["?", ".", "\n", " "])
def test_runs_of_one_character_beside_a_recalled_chunk(filler: str) -> None:
    run = filler * LONG
    said = [Chunk(kind=ChunkKind.MESSAGE, role="user", text=text) for text in (f"a{run}a", run)]
    assert not completes(said[0], said[1], 1)
    texts = [Chunk(kind=ChunkKind.TEXT, text=text) for text in (f"a{run}a", f"a{run}")]
    assert completes(texts[0], texts[1], 1)
    assert completes(texts[0], texts[1], -1)
