"""Revisions: replies of PRISM, to a memory that holds something.

Realistic replies are cut, spliced, repeated and sprinkled with noise, or made of random
bytes, and read as a model's reply to a memory that holds something. Whatever the input:
nothing is raised, every amendment fits the schema and can be stored, and a replay gives the
same bytes as applying step by step.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from service.domain.prism.amending import amend, put, remove, replay
from service.domain.prism.amendments import Op, Revision, Rules
from service.domain.prism.replies import answer_so_far, read_answer
from service.domain.prism.revisions import parse_consolidation, parse_reply
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.schemas.tree import fit
from service.domain.prompting.asking import Unusable
from service.domain.values.json_values import Json, canonical, parse
from service.domain.values.paths import Path
from tests.support.replies import CORPUS, NOISE, SOURCE, STATE
from verification.fuzz.mutations import ODD, json_of, text_of
from verification.fuzz.runs import SECONDS, Broken, Target

SCHEMA = parse_source(SOURCE)
#: The replies of models that keep to a schema.
_STRUCTURED = tuple(json.loads(one) for one in CORPUS if one.startswith(("{", "[{")))
_WORDS = (
    *("path", "value", "add", "update", "remove", "op", "replace", "from", "$.rating", "/rows/0"),
    *("$.attributes.a", "$['places']['a.b']", "$.people[-].name", "/people/-", "$", "$.rows[1][0]"),
    *({"name": "Eve"}, ["x"], [[1]], {"path": "$.rating", "value": 3}),
)
RULES = (
    Rules(),
    Rules(may_remove=True),
    Rules(add_only=True),
    Rules(coerce=True, may_remove=True),
    Rules(max_memory_bytes=700, max_value_bytes=60, max_depth=3, max_breadth=4, may_remove=True),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """A reply, and how it is read."""

    text: str
    rules: Rules
    tidies: bool
    #: What the memory holds, as JSON.
    state: str = STATE

    def __len__(self) -> int:
        return len(self.text)


def check(text: str, value: Json, rules: Rules, *, tidies: bool) -> Revision:
    """Reads an input and raises Broken where a promise is not kept."""
    parse_one = parse_consolidation if tidies else parse_reply
    before = canonical(value)
    try:
        revision = parse_one(text, SCHEMA, value, rules)
    except Unusable as error:
        if not str(error):
            raise Broken("what is unreadable says why") from error
        revision = Revision(amendments=(), rejections=())
    if canonical(value) != before:
        raise Broken("reading changes nothing")
    step: Json = value
    for one in revision.amendments:
        if Path.parse(str(one.path)) != one.path or SCHEMA.type_at(one.path)[0] != one.path:
            raise Broken("a path is read again as it was")
        if one.op is Op.REMOVE:
            step = remove(SCHEMA, step, one.path)
        else:
            stored = parse(canonical(one.value))
            stored_text = canonical(fit(SCHEMA.type_at(one.path)[1], stored))
            if stored_text.encode() != canonical(one.value).encode():
                raise Broken("a value fits its type and survives storage")
            step = put(SCHEMA, step, one.path, one.value)
    after = canonical(step)
    if after != canonical(fit(SCHEMA.root, step)) or "\0" in after:
        raise Broken("the memory fits its schema and can be stored")
    if after != canonical(parse(after, max_nodes=len(after))):
        raise Broken("the memory can be loaded")
    if after != canonical(amend(SCHEMA, value, revision.amendments)):
        raise Broken("amending at once is amending one by one")
    if after != canonical(replay(SCHEMA, parse(before), revision.amendments)):
        raise Broken("a replay gives the same bytes")
    if len(after.encode()) > max(rules.max_memory_bytes, len(before.encode())):
        raise Broken("the memory keeps to its limit")
    for refused in revision.rejections:
        if not refused.reason or b"\0" in (refused.proposal + refused.reason).encode():
            raise Broken("a rejection has a reason and can be stored")
    return revision


def _made(rng: random.Random) -> Reply:
    text = (
        json_of(rng, _STRUCTURED, _WORDS, NOISE)
        if rng.random() < 0.25
        else text_of(rng, CORPUS, (*NOISE, *ODD) if rng.random() < 0.2 else NOISE)
    )
    rules = rng.choice(RULES)
    tidies = rng.random() < 0.2
    state = STATE
    if rng.random() < 0.5:
        # The next reply meets what another one left.
        value = parse(STATE)
        try:
            left = parse_reply(text_of(rng, CORPUS, NOISE), SCHEMA, value, RULES[1])
        except Unusable:
            left = Revision(amendments=(), rejections=())
        state = canonical(amend(SCHEMA, value, left.amendments))
    return Reply(text=text, rules=rules, tidies=tidies, state=state)


def _check(made: Reply) -> bool:
    value = parse(made.state, max_nodes=len(made.state))
    return bool(check(made.text, value, made.rules, tidies=made.tidies).amendments)


_ANSWERS = (
    "[ANSWER]\nTwo pools.\n[PATHS]\n$.attributes.Pool\n- `/rating`\n1. $['a']",
    "**[Answer]** It is open.\n\n**[PATHS]:**\n",
    "<think>\n[ANSWER] no\n</think>\n[ANSWER]\nyes",
    "No sections at all.",
    "[ANSWER]\n**No answer.**\n[PATHS]\n",
)


def _answer(text: str) -> bool:
    said = read_answer(text)
    answer, paths = ("", ()) if said is None else (said.text, said.sources)
    if any(not one.startswith(("$", "/")) or "\n" in one for one in paths):
        raise Broken("a path of an answer is one")
    if answer not in text or len(answer_so_far(text)) > len(text):
        raise Broken("an answer is a part of its reply")
    return bool(paths)


TARGETS: Sequence[Target] = (
    # Each is read, stored, loaded and replayed.
    Target(name="revisions", make=_made, check=_check, calls=800_000, seconds=4 * SECONDS),
    Target(name="answers", make=lambda rng: text_of(rng, _ANSWERS, NOISE), check=_answer),
)
