"""Recognizes texts that are kept out of a session, by keyed digests of their words.

A phrase is recognized as a run of whole words, whatever their case and what is between them. Part
of a word, and the same in other words, is not.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from itertools import chain, repeat
from uuid import UUID

from service.domain.log.chunks import Chunk
from service.domain.log.matching import normalized, parts_of

#: The number of words of a rule about the whole text of a chunk.
WHOLE = 0
#: Numbers of words that the phrases of a session have: chunks are compared for each of them.
MAX_LENGTHS = 16
_WORD = re.compile(r"\w+")
_PURPOSE = b"keep out\0"
#: A digest of a run is a number below it.
_PRIME = 2**256 - 189

#: Returns the keyed digest of a text's digest or words.
Keyed = Callable[[bytes], bytes]


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptOutText:
    """A text that a session keeps out; the service has only its keyed digest."""

    #: The first 16 bytes of the digest, in hexadecimal.
    id: str
    #: How many words a phrase has; WHOLE: it is the whole text of a chunk.
    words: int
    created_at: datetime
    #: The redaction that keeps it out: its erasure, principal and reason.
    erasure_id: str
    principal: str
    reason: str
    #: Chunks that were stored as tombstones for this redaction when they were appended.
    refused_chunks: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepOutRules:
    """What is kept out of a session."""

    #: Redactions by keyed digests, by numbers of words.
    by_words: Mapping[int, Mapping[bytes, UUID]] = field(default_factory=dict)

    def find(self, chunk: Chunk, keyed: Keyed) -> UUID | None:
        """Returns the redaction that a chunk belongs to; None: it is stored as it is.

        A chunk of 100,000 words takes seconds: call it beside the event loop.
        """
        whole = self.by_words.get(WHOLE)
        if whole and (found := whole.get(whole_digest(chunk, keyed))) is not None:
            return found
        phrases = [(count, known) for count, known in self.by_words.items() if count != WHOLE]
        for part in parts_of(chunk) if phrases else ():
            numbers = _numbers(_words(part), keyed)
            for count, known in phrases:
                for digest in _digests(numbers, count, keyed):
                    if (found := known.get(digest)) is not None:
                        return found
        return None


def whole_digest(chunk: Chunk, keyed: Keyed) -> bytes:
    """Returns the keyed digest of all words of a chunk's texts; without any, of their signs."""
    texts = chunk.parts[1:]
    words = [word for text in texts for word in _words(text)] or map(normalized, texts)
    return keyed(_PURPOSE + b"whole\0" + " ".join(words).encode())


def phrase_rule(phrase: str, keyed: Keyed) -> tuple[int, bytes] | None:
    """Returns the number of words of a phrase and its keyed digest; None when it has no word."""
    words = _words(phrase)
    digest = next(_digests(_numbers(words, keyed), len(words), keyed), None)
    return None if digest is None else (len(words), digest)


def holds_phrase(chunk: Chunk, phrase: str) -> bool:
    """Returns whether a chunk has the words of a phrase in a row, so that a rule recognizes it."""
    wanted = _words(phrase)
    return bool(wanted) and any(
        f" {' '.join(wanted)} " in f" {' '.join(_words(part))} " for part in parts_of(chunk)
    )


def _words(text: str) -> list[str]:
    return _WORD.findall(normalized(text))


def _numbers(words: Sequence[str], keyed: Keyed) -> Sequence[int]:
    """Returns the keyed digest of each word, as a number."""
    key = keyed(_PURPOSE + b"words\0")
    numbers = {
        one: int.from_bytes(blake2b(one.encode(), key=key, digest_size=32).digest())
        for one in set(words)
    }
    return [numbers[one] for one in words]


def _digests(numbers: Sequence[int], count: int, keyed: Keyed) -> Iterator[bytes]:
    """Yields the keyed digest of each run of `count` words.

    As in the search of Rabin and Karp, it is a polynomial over the keyed digests of the words, and
    follows from the one before: the time does not depend on `count`.
    """
    if not 0 < count <= len(numbers):
        return
    base = int.from_bytes(keyed(_PURPOSE + count.to_bytes(4)))
    leaving = pow(base, count, _PRIME)
    run = 0
    for entering, left in zip(numbers, chain(repeat(0, count), numbers), strict=False):
        run = (run * base + entering - left * leaving) % _PRIME
        count -= 1
        if count <= 0:
            yield run.to_bytes(32)
