"""Values: paths, literals, JSON and tokens."""

import random
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from service.domain.log.read_tokens import ReadToken, TokenInvalid, sign_page, verify_page
from service.domain.prompting.literals import LiteralError, LiteralReader
from service.domain.values.json_values import canonical, checked, parse
from service.domain.values.paths import Path, PathError
from tests.support.replies import NOISE
from verification.fuzz.mutations import ODD, json_of, text_of
from verification.fuzz.runs import Broken, Target

_PATHS = (
    "$",
    "$.'attributes'.'Food & Beverage'",
    "$['a']['it\\'s'][0][-1]",
    "/people/0/said/-",
    "/x~1y/~0/~01",
    '$ . "a b" [ 3 ] [-] . c.d',
    "$['\\u00e4\\ud83d\\ude00\\n']",
    "$.'it's'.'b'",
    "$" + "[0]" * 40,
)
_PATH_NOISE = (
    *("$", ".", "'", '"', "[", "]", "['", "']", "[0]", "[-]", "/", "~", "\\u", "\\'"),
    *ODD,
)
_LITERALS = (
    '{"a": [1, 2.5, -3e4, true, null], "b": {"c": "x\\n\\u00e4"}}',
    "{'a': (1, None, True,), 'b': 'one ' 'two', # note\n 'c': '''long\none'''}",
    "[0x1, 1_000, .5, 5., +3, Infinity, undefined, name]",
    '{a: "b", // note\n c: """x""y"""}',
    '"' + "\\" * 50 + '"',
)
_JSONS: tuple[Any, ...] = (
    {"a": [1, 2.5, True, None, "x", {"b": {}}]},
    [[[[1]]]],
    "text",
    3,
    {"": {"": [0]}},
)
_KEY = b"key of tests"
_SESSION = UUID(int=7)
_TOKENS = (
    ReadToken(session_key=_SESSION, incarnation=3, position=2**40).sign(_KEY),
    sign_page(_KEY, "scope", "17 x"),
    sign_page(_KEY, "sc\0ope", "ä"),
    "A" * 56,
)


def _path(text: str) -> bool:
    path = Path.parse(text)
    if Path.parse(str(path)) != path:
        raise Broken("a path is read again as it was")
    return True


def _literal(text: str) -> bool:
    reader = LiteralReader(text, 2 * len(text) + 100)
    try:
        value = reader.value()
    except LiteralError as error:
        if not 0 <= error.at <= len(text):
            raise Broken("an error says where") from error
        raise
    if not 0 <= reader.at <= len(text):
        raise Broken("it says where it stopped")
    return value is not None


def _json(text: str) -> bool:
    value = parse(text)
    again = canonical(value)
    if canonical(parse(again)) != again or canonical(checked(value)) != again:
        raise Broken("a value is read again as it was")
    again.encode()
    return True


def _token(text: str) -> bool:
    try:
        ReadToken.verify(_KEY, text)
    except TokenInvalid:
        verify_page(_KEY, "scope", text)
    if text.rstrip("=") not in _TOKENS:
        raise Broken("a token that was not signed is refused")
    return True


def _made_token(rng: random.Random) -> str:
    return text_of(rng, _TOKENS, ("=", "-", "_", "+", "/", "A", "AAAA", "====", *ODD), most=20_000)


TARGETS: Sequence[Target] = (
    Target(
        name="paths",
        make=lambda rng: text_of(rng, _PATHS, _PATH_NOISE),
        check=_path,
        refusals=(PathError,),
    ),
    Target(
        name="literals",
        make=lambda rng: text_of(rng, _LITERALS, NOISE),
        check=_literal,
        refusals=(LiteralError,),
    ),
    Target(name="json", make=lambda rng: json_of(rng, _JSONS), check=_json, refusals=(ValueError,)),
    Target(name="tokens", make=_made_token, check=_token, refusals=(TokenInvalid,)),
)
