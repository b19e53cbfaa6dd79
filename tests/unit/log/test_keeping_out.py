"""Recognizing texts that are kept out, by keyed digests of runs of words."""

import hmac
from functools import partial
from uuid import UUID

import pytest

from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.log.keeping_out import (
    WHOLE,
    KeepOutRules,
    holds_phrase,
    phrase_rule,
    whole_digest,
)

REDACTION = UUID(int=1)


def _hmac(key: bytes, said: bytes) -> bytes:
    return hmac.digest(key, said, "sha256")


keyed = partial(_hmac, b"key")


def chunk(text: str, source: str = "") -> Chunk:
    return Chunk(kind=ChunkKind.TEXT, text=text, source=source)


def rules_of(*phrases: str) -> KeepOutRules:
    by_words: dict[int, dict[bytes, UUID]] = {}
    for number, phrase in enumerate(phrases, 1):
        rule = phrase_rule(phrase, keyed)
        assert rule is not None
        words, digest = rule
        by_words.setdefault(words, {})[digest] = UUID(int=number)
    return KeepOutRules(by_words=by_words)


@pytest.mark.parametrize(
    "text",
    [
        "the code is 7",
        "THE  code,\nis: 7!",
        "they say the code is 7",
        "the the code is 7 is",
        "the code the code is 7",
    ],
)
def test_a_phrase_is_found_wherever_its_words_are_in_a_row(text: str) -> None:
    phrase = "The code is 7"
    assert rules_of("other", phrase).find(chunk(text), keyed) == UUID(int=2)
    assert rules_of(phrase).find(chunk("x", source=text), keyed) == REDACTION
    assert holds_phrase(chunk(text), phrase)


@pytest.mark.parametrize(
    "text",
    ["", "the code is", "code is 7", "7 is the code", "the code is 77", "the code now is 7", "is"],
)
def test_other_words_and_another_order_are_not(text: str) -> None:
    phrase = "the code is 7"
    assert rules_of(phrase).find(chunk(text), keyed) is None
    assert not holds_phrase(chunk(text), phrase)


def test_a_run_of_repeated_words_has_the_digest_of_its_own_length() -> None:
    rules = rules_of("no no no")
    assert rules.find(chunk("no no"), keyed) is None
    assert rules.find(chunk("no no no no"), keyed) == REDACTION


def test_a_digest_depends_on_the_key_and_on_the_number_of_words() -> None:
    (words, digest), other = phrase_rule("a b", keyed) or (0, b""), phrase_rule("a b", _other)
    assert (words, len(digest)) == (2, 32)
    assert other is not None
    assert other[1] != digest
    moved = KeepOutRules(by_words={1: {digest: REDACTION}})
    assert moved.find(chunk("a b"), keyed) is None


def _other(said: bytes) -> bytes:
    return _hmac(b"other key", said)


def test_the_whole_text_is_compared_as_a_whole() -> None:
    digest = whole_digest(chunk("The cipher, is 7"), keyed)
    rules = KeepOutRules(by_words={WHOLE: {digest: REDACTION}})
    assert rules.find(chunk("the Cipher is: 7"), keyed) == REDACTION
    assert rules.find(chunk("the cipher is 7 now"), keyed) is None


def test_a_text_without_words_keeps_out_no_other_one() -> None:
    rules = KeepOutRules(by_words={WHOLE: {whole_digest(chunk("\U0001f511 !"), keyed): REDACTION}})
    assert rules.find(chunk("\U0001f511  !"), keyed) == REDACTION
    assert rules.find(chunk("\U0001f44d"), keyed) is None
    assert rules.find(chunk("?"), keyed) is None


def test_a_long_phrase_costs_no_more_digests_than_a_short_one() -> None:
    calls = 0

    def counting(said: bytes) -> bytes:
        nonlocal calls
        calls += 1
        return keyed(said)

    text = " ".join(str(number % 97) for number in range(5000))
    rules = rules_of(" ".join("xy" * 400), "x")
    assert rules.find(chunk(text), counting) is None
    assert calls < 10
