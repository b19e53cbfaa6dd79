"""A text is found in every form in which something could store it."""

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.operations.encodings import MAX_BYTES, PIECE_CHARACTERS, needles

SECRET = 'Zoë said "the vault\\opens at 3"\tNine'


def found(text: str, stored: bytes) -> bool:
    return any(needle in stored for needle in needles(text))


STORED = {
    "UTF-8": b"x" + SECRET.encode() + b"y",
    "JSON": json.dumps({"a": SECRET}).encode(),
    "JSON in UTF-8": json.dumps({"a": SECRET}, ensure_ascii=False).encode(),
    "JSON in JSON": json.dumps({"a": json.dumps({"b": SECRET})}).encode(),
    "COPY": SECRET.replace("\\", "\\\\").replace("\t", "\\t").encode(),
    "COPY of JSON": json.dumps({"a": SECRET}).replace("\\", "\\\\").encode(),
    "bytea": b"\\\\x" + b"00" + SECRET.encode().hex().encode(),
    "HEX": SECRET.encode().hex().upper().encode(),
    "UTF-16": SECRET.encode("utf-16"),
    "UTF-16 BE": SECRET.encode("utf-16-be"),
    "URL": quote(f"?q={SECRET}").encode(),
    **{f"base64 at {n}": base64.b64encode(b"." * n + SECRET.encode() + b"..") for n in range(3)},
    "base64 for URLs": base64.urlsafe_b64encode(b"\xff\xfe" + SECRET.encode()),
}


@pytest.mark.parametrize("form", STORED)
def test_a_text_is_found(form: str) -> None:
    assert found(SECRET, STORED[form])
    assert not found("Zoë said no such thing", STORED[form])


@given(st.text(min_size=8, max_size=40), st.binary(max_size=7), st.binary(max_size=7))
def test_any_text_is_found_at_any_alignment(text: str, before: bytes, after: bytes) -> None:
    stored = base64.b64encode(before + text.encode() + after)
    assert found(text, stored)
    assert found(text, before + text.encode() + after)


def test_a_part_of_a_long_text_is_found() -> None:
    text = " ".join(f"word{n}" for n in range(2000))
    for begin in range(0, len(text) - 4000, 1777):
        assert found(text, text[begin : begin + 3000].encode())
    assert len(needles(text)) < 1200
    assert max(map(len, needles(text))) < 8 * PIECE_CHARACTERS


@pytest.mark.parametrize("text", ["", "short", "x" * (MAX_BYTES + 1)])
def test_texts_that_prove_nothing_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a scan takes 6 to 1,048,576"):
        needles(text)
