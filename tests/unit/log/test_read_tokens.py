"""Tokens are read back, and invalid ones are refused."""

import string
from uuid import UUID

import pytest

from service.domain.log.read_tokens import ReadToken, TokenInvalid, sign_page, verify_page

KEY = b"key of tests"
TOKEN = ReadToken(session_key=UUID(int=7), incarnation=1, position=3)
ALPHABET = string.ascii_letters + string.digits + "-_"


def test_a_token_is_read_back() -> None:
    text = TOKEN.sign(KEY)
    assert len(text) == 54
    assert ReadToken.verify(KEY, text) == TOKEN
    assert verify_page(KEY, "sessions:", sign_page(KEY, "sessions:", "main")) == "main"


@pytest.mark.parametrize("place", ["", "m", "ma", "main", "über"])
def test_every_other_text_is_refused(place: str) -> None:
    text = sign_page(KEY, "sessions:", place)
    others = {text[:at] + one + text[at + 1 :] for at in range(len(text)) for one in ALPHABET}
    others |= {text + "=", text + "==", text + "A", text[:-1], "", f" {text}", f"{text}\n"}
    for other in others - {text}:
        with pytest.raises(TokenInvalid):
            verify_page(KEY, "sessions:", other)


def test_a_token_is_of_one_key_list_and_kind() -> None:
    page = sign_page(KEY, "sessions:", "main")
    for key, scope in ((b"another", "sessions:"), (KEY, "memories:")):
        with pytest.raises(TokenInvalid):
            verify_page(key, scope, page)
    with pytest.raises(TokenInvalid):
        ReadToken.verify(KEY, page)
    with pytest.raises(TokenInvalid):
        ReadToken.verify(b"another", TOKEN.sign(KEY))
