"""Makes inputs from a corpus by mutations, near to it or far from it."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

#: Characters of an input, at most.
MAX_CHARACTERS = 200_000

#: What breaks readers of any text.
ODD = (
    *("\0", "\\u0000", "\\ud800", "\ud800", "\udfff", "\\", "\\\\", "\u2028", "\ufeff", "\x85"),
    *("\u202e", "\u200f", "\u200b", "e\u0301", "İ", "ß", "ﬁ", "😀", "\U0010ffff", "\x1b[31m"),
    *("9" * 70, "9" * 5000, "-0", "1e999", "0x1f", "٣", "²", "１", "NaN", "-Infinity", "1_0"),
    *("{", "}", "[", "]", "(", ")", '"', "'", '"""', "'''", "`", "```", ":", ",", ";", "/", "~1"),
    *(
        "\n",
        "\r",
        "\r\n",
        "\t",
        " ",
        "\v",
        "\f",
        "\n\n",
        " \n",
        "<think>",
        "</think>\n",
    ),
)
#: How often an odd piece may be repeated in a row.
_TIMES = (1, 1, 1, 1, 3, 100)
_MANY = (2, 10, 200, 2000)


def text_of(
    rng: random.Random,
    corpus: Sequence[str],
    noise: Sequence[str] = ODD,
    *,
    most: int = MAX_CHARACTERS,
) -> str:
    """Returns an input, by chance near to one of the corpus or far from it."""
    kind = rng.random()
    if kind < 0.03:
        return rng.randbytes(rng.randrange(400)).decode(errors="replace")
    text = rng.choice(corpus)
    if kind < 0.05:
        return (text[: rng.randrange(80)] + rng.choice((*noise, *ODD)) * rng.choice(_MANY))[:most]
    if kind < 0.06:
        text = text * rng.choice(_MANY)
    for _ in range(rng.choice((0, 1, 1, 2, 4, 16))):
        text = rng.choice(_MUTATIONS)(rng, text, corpus, noise)
    return text[:most]


def _cut(rng: random.Random, text: str, _c: Sequence[str], _n: Sequence[str]) -> str:
    return text[: rng.randrange(len(text) + 1)]


def _drop(rng: random.Random, text: str, _c: Sequence[str], _n: Sequence[str]) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + text[at + rng.choice((1, 1, 2, 20)) :]


def _insert(rng: random.Random, text: str, _c: Sequence[str], noise: Sequence[str]) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(noise) * rng.choice(_TIMES) + text[at:]


def _odd(rng: random.Random, text: str, _c: Sequence[str], _n: Sequence[str]) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(ODD) * rng.choice((1, 1, 1, 2, 30)) + text[at:]


def _character(rng: random.Random, text: str, _c: Sequence[str], _n: Sequence[str]) -> str:
    at = rng.randrange(len(text) + 1)
    char = chr(rng.choice((rng.randrange(128), rng.randrange(0x110000))))
    return text[:at] + char + text[at + 1 :]


def _splice(rng: random.Random, text: str, corpus: Sequence[str], _n: Sequence[str]) -> str:
    other = rng.choice(corpus)
    return text[: rng.randrange(len(text) + 1)] + other[rng.randrange(len(other) + 1) :]


def _repeat(rng: random.Random, text: str, _c: Sequence[str], _n: Sequence[str]) -> str:
    begin = rng.randrange(len(text) + 1)
    end = min(begin + rng.choice((1, 5, 40, 200)), len(text))
    return text[:end] + text[begin:end] * rng.choice((1, 2, 50)) + text[end:]


def _swap_quotes(_: random.Random, text: str, _c: Sequence[str], _n: Sequence[str]) -> str:
    return text.translate({ord("'"): '"', ord('"'): "'"})


def _flatten(_: random.Random, text: str, _c: Sequence[str], _n: Sequence[str]) -> str:
    return " ".join(text.split())


def _bytes(rng: random.Random, text: str, _c: Sequence[str], _n: Sequence[str]) -> str:
    raw = bytearray(text.encode(errors="replace"))
    for _ in range(rng.randrange(1, 6)):
        if raw:
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    return raw.decode(errors="replace")


_Mutation = Callable[[random.Random, str, Sequence[str], Sequence[str]], str]
_MUTATIONS: tuple[_Mutation, ...] = (
    *(_cut, _drop, _drop, _insert, _insert, _odd, _character, _splice, _splice, _repeat),
    *(_swap_quotes, _flatten, _bytes),
)

#: Values of JSON that a reader may not expect.
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 2**64, 10**70, 0.5, 1e308, -0.0, 5e-324),
    *(
        "",
        " ",
        "a",
        "\0",
        "\ud800",
        "9" * 40,
        "x" * 3000,
        "../../etc/passwd",
        "#/$defs/A",
        "offline/x",
    ),
    *(
        [],
        {},
        [[]],
        [{}],
        {"": ""},
        {"a": {"a": {}}},
        [None],
        ["a", "a"],
        float("inf"),
        float("nan"),
    ),
)


def value_of(rng: random.Random, corpus: Sequence[Any], words: Sequence[Any] = ()) -> Any:
    """Returns a value of JSON: one of the corpus with parts of it changed."""
    value = json.loads(json.dumps(rng.choice(corpus)))
    for _ in range(rng.choice((0, 1, 1, 2, 3, 8))):
        value = _changed(rng, value, words)
    return value


def _changed(rng: random.Random, value: Any, words: Sequence[Any]) -> Any:
    """Returns a value with one part of it changed."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        return _changed_pair(rng, value, key, words)
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        kind = rng.random()
        if kind < 0.1:
            return value[:at] + value[at + 1 :]
        if kind < 0.2:
            return value[:at] + [value[at]] * rng.choice((2, 3, 30)) + value[at:]
        return [*value[:at], _changed(rng, value[at], words), *value[at + 1 :]]
    kind = rng.random()
    if kind < 0.1:
        for _ in range(rng.choice((1, 2, 40, 300))):
            value = [value] if rng.random() < 0.5 else {"a": value}
        return value
    if kind < 0.2 and isinstance(value, str):
        return _odd(rng, value, (), ())
    if kind < 0.3 and isinstance(value, int):
        return value + rng.choice((-1, 1, 10**6, 10**20))
    return rng.choice(words) if words and kind < 0.6 else rng.choice(_VALUES)


def _changed_pair(rng: random.Random, value: dict[str, Any], key: str, words: Sequence[Any]) -> Any:
    kind = rng.random()
    if kind < 0.1:
        return {k: v for k, v in value.items() if k != key}
    if kind < 0.2:
        named = [one for one in words if isinstance(one, str)]
        other = rng.choice((*named, *ODD[:20], "a", "type"))
        return {**value, other: value[key]}
    if kind < 0.25:
        return {(k if k != key else k + rng.choice(ODD[:20])): v for k, v in value.items()}
    return {**value, key: _changed(rng, value[key], words)}


def json_of(
    rng: random.Random, corpus: Sequence[Any], words: Sequence[Any] = (), noise: Sequence[str] = ODD
) -> str:
    """Returns the text of such a value, now and then with its text changed as well."""
    try:
        text = json.dumps(value_of(rng, corpus, words), ensure_ascii=rng.random() < 0.5)
    except RecursionError:
        text = "[" * 5000
    return text_of(rng, (text,), noise) if rng.random() < 0.4 else text[:MAX_CHARACTERS]
