"""What a campaign writes: chunks name their places, and replies the calls that made them.

The text of a chunk follows from its producer and sequence alone, so that a checker needs
no copy of a million of them. Its first word is its name: the scripted model puts it into
the memory, and the checker finds it again there.
"""

import hashlib
import re

#: What is after the name of a chunk, as many of its words as the name's hash says.
_FILLER = "the river bends where old stones hold the bridge and boats wait for rain"
_WORDS = _FILLER.split()

#: The name of a chunk in any text.
NAME = re.compile(r"\bc([a-z0-9]+)x(\d+)\b")
#: The serial of the model call that made a text.
SERIAL = re.compile(r"\[s(\d+)\]")


def chunk_name(producer: str, sequence: int) -> str:
    """Returns the name of a chunk; `producer` has lower-case letters and digits only."""
    return f"c{producer}x{sequence}"


def owner(producer: str, sequence: int, text: str) -> tuple[str, int]:
    """Returns the producer of a chunk and its sequence, however it was appended.

    A chunk that was appended without a producer names both in its text.
    """
    named = None if producer else NAME.match(text)
    return (producer, sequence) if named is None else (named[1], int(named[2]))


def chunk_text(producer: str, sequence: int) -> str:
    """Returns what a chunk says; 10 to 80 characters."""
    name = chunk_name(producer, sequence)
    length = hashlib.sha256(name.encode()).digest()[0] % len(_WORDS)
    return " ".join((name, *_WORDS[:length]))
