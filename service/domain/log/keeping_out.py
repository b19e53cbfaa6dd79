"""Recognizes texts that are kept out of a session, by keyed digests of their words.

A phrase is recognized as a run of whole words, whatever their case and what is between them. Part
of a word, and the same in other words, is not.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from service.domain.log.chunks import Chunk
from service.domain.log.matching import normalized, parts_of

#: The number of words of a rule about the whole text of a chunk.
WHOLE = 0
_WORD = re.compile(r"\w+")
_PURPOSE = b"keep out\0"

#: Returns the keyed digest of a text's digest or words.
Keyed = Callable[[bytes], bytes]


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepOutRules:
    """What is kept out of a session."""

    #: Redactions by keyed digests, by numbers of words.
    by_words: Mapping[int, Mapping[bytes, UUID]] = field(default_factory=dict)

    def find(self, chunk: Chunk, keyed: Keyed) -> UUID | None:
        """Returns the redaction that a chunk belongs to; None: it is stored as it is."""
        if not self.by_words:
            return None
        whole = self.by_words.get(WHOLE)
        if whole and (found := whole.get(whole_digest(chunk, keyed))) is not None:
            return found
        for part in parts_of(chunk):
            words = _words(part)
            for count, known in self.by_words.items():
                if count == WHOLE:
                    continue
                for run in _runs(words, count):
                    if (found := known.get(keyed(run))) is not None:
                        return found
        return None


def whole_digest(chunk: Chunk, keyed: Keyed) -> bytes:
    """Returns the keyed digest of all words of a chunk's texts."""
    words = [word for part in chunk.parts[1:] for word in _words(part)]
    return keyed(_PURPOSE + b"whole\0" + " ".join(words).encode())


def phrase_rule(phrase: str, keyed: Keyed) -> tuple[int, bytes] | None:
    """Returns the number of words of a phrase and its keyed digest; None when it has no word."""
    words = _words(phrase)
    return (len(words), keyed(_run(words))) if words else None


def holds_phrase(chunk: Chunk, phrase: str) -> bool:
    """Returns whether a chunk has the words of a phrase in a row, so that a rule recognizes it."""
    wanted = _words(phrase)
    return any(
        _run(wanted) in _runs(_words(part), len(wanted)) for part in parts_of(chunk) if wanted
    )


def _words(text: str) -> list[str]:
    return _WORD.findall(normalized(text))


def _runs(words: Collection[str], count: int) -> Iterator[bytes]:
    listed = list(words)
    seen: set[bytes] = set()
    for start in range(len(listed) - count + 1):
        run = _run(listed[start : start + count])
        if run not in seen:
            seen.add(run)
            yield run


def _run(words: Collection[str]) -> bytes:
    return _PURPOSE + " ".join(words).encode()
