"""Parts of pieces whose sources are not verified."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from service.domain.answers.browse.packing import PiecePacker, piece_of
from service.domain.answers.browse.pieces import UNVERIFIED_NOTE, shown, trust_note
from service.domain.prompting.tokens import estimate_tokens
from tests.unit.answers.test_prompt_goldens_browse import OFFERED, PARTS, PROMPTS

WORDS = [f"Word {number} of the log. " * (1 + number % 5) for number in range(30)]


def cut(text: str, tokens: int) -> int:
    return 4 * tokens


@given(st.sets(st.integers(1, 30)), st.integers(60, 200))
def test_a_piece_has_room_for_what_names_them(unverified: set[int], tokens: int) -> None:
    texts = list(enumerate(WORDS, 1))
    packer = PiecePacker(tokens, count=estimate_tokens, cut=cut)
    frames = [*packer.feed(texts, unverified), *packer.finish()]
    pieces = [
        piece_of(frame, texts[frame.from_position - 1 : frame.to_position], unverified)
        for frame in frames
    ]
    parts = [part for piece in pieces for part in piece.parts]
    assert "".join(part.text for part in parts) == "".join(WORDS)
    assert {part.position for part in parts if part.is_unverified} == unverified
    for piece in pieces:
        assert estimate_tokens(trust_note(piece.parts) + shown(piece.parts)) <= tokens


def test_a_prompt_names_them_and_is_otherwise_the_same() -> None:
    plain = PROMPTS.piece(PARTS, (), OFFERED).text
    assert "unverified" not in plain
    parts = [PARTS[0], replace(PARTS[1], is_unverified=True)]
    named = PROMPTS.piece(parts, (), OFFERED).text
    assert f"[TEXT]\n{UNVERIFIED_NOTE}<<<data" in named
    assert "[7]\nAnn came in.\n[8] (unverified source)\nBen left at dawn.\n" in named
