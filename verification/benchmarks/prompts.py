"""Counts the tokens of the service's own words in each prompt, and what its calls cost.

`value` is the tokens of a PRISM step's instructions, the longest of those that come often.
Prompts are those of small samples, counted with the vocabulary of MODEL: `instructions` come
first and are the same for all calls of a memory or a reader, `around` is these and the least that
any prompt has besides, `schema` the JSON Schema that may be beside it, or before it.

Calls are of the sizes in CALLS, with their schemas, at the prices of MODEL: first without its
cache, then with all in it that an earlier call began with. Nothing is asked and nothing measured
in seconds.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from service.domain.prompting.flows import ModelRequest
from service.domain.spend.prices import cost_micro_usd
from service.llm.providers.facts import Facts
from service.llm.providers.prices import Prices
from service.settings.config import Config
from tests.unit.answers.flow_asks import FLOWS

MODEL = "openai/gpt-4.1-mini"
#: A revision that adds an element to a list, and a list.
REVISION = {
    "changes": [
        {"op": "add", "path": "$.'facts'.'price'[1]", "value": "grown-ups pay nine euros"},
        {"op": "add", "path": "$.'facts'.'hours'", "value": '["closed on Mondays"]'},
    ]
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A call as it may be, in tokens of what it is about."""

    template: str
    #: After the instructions, and the same in the next call that begins alike.
    kept: int = 0
    #: After that, and new in each call.
    new: int
    #: None: those of REVISION.
    reply: int | None


CALLS = {
    "PRISM step": Call(template="prism.revise", kept=2000, new=100, reply=None),
    "PRISM consolidation": Call(template="prism.consolidate", new=8000, reply=1000),
    "PRISM answer": Call(template="prism.answer", kept=2000, new=20, reply=80),
    "tree, summary of a text": Call(template="tree.summarize", new=1000, reply=250),
    "tree, summary of eight": Call(template="tree.compress", new=2000, reply=250),
    "tree, choice of a child": Call(template="tree.triage", kept=2000, new=20, reply=60),
    "tree, leaf": Call(template="tree.leaf", kept=1000, new=270, reply=80),
    "PCC, ten steps": Call(template="state.compress", new=2500, reply=500),
    "PCC answer": Call(template="state.answer", kept=500, new=1000, reply=80),
    "browsing, understanding": Call(template="browse.understand", new=20, reply=50),
    "browsing, piece": Call(template="browse.piece", kept=3000, new=220, reply=80),
    "browsing, answer": Call(template="browse.close", new=820, reply=80),
    "whole log": Call(template="whole.answer", kept=20000, new=20, reply=80),
    "reranking ten": Call(template="search.rerank", new=3020, reply=40),
    "shaping an answer": Call(template="answer.shape", new=300, reply=80),
    "schema": Call(template="schema.generate", new=60, reply=400),
}


def run(_: float) -> dict[str, Any]:
    """Counts; see the module. The table goes to standard error."""
    config = Config()
    count, prices = Facts(config).of(MODEL).count, Prices(config)
    templates = _counted(count)
    own = {template.split("/")[0]: counted for template, counted in templates.items()}
    revision = count(json.dumps(REVISION))
    calls = {
        name: _come_to(call, own[call.template], revision, prices) for name, call in CALLS.items()
    }
    print("\n".join(_rows(templates, calls)), file=sys.stderr)
    step = own[CALLS["PRISM step"].template]
    return {"value": step["instructions"], "templates": templates, "calls": calls}


def _counted(count: Callable[[str], int]) -> dict[str, dict[str, int]]:
    asks: dict[str, list[ModelRequest]] = {}
    for name in FLOWS:
        for ask in FLOWS[name]():
            asks.setdefault(ask.template, []).append(ask)
    return {template: _of_template(asks[template], count) for template in sorted(asks)}


def _of_template(asks: list[ModelRequest], count: Callable[[str], int]) -> dict[str, int]:
    first, schemas = asks[0], [ask.reply_schema for ask in asks]
    instructions = count(first.segments[0].text)
    least = min(count(ask.text) - count(ask.segments[0].text) for ask in asks)
    return {
        "instructions": instructions,
        "around": instructions + least,
        "schema": max(count(json.dumps(schema)) if schema else 0 for schema in schemas),
    }


def _come_to(call: Call, own: dict[str, int], revision: int, prices: Prices) -> dict[str, Any]:
    price = prices.of(MODEL)
    tokens = own["around"] + own["schema"] + call.kept + call.new
    begun = own["schema"] + own["instructions"] + call.kept
    cached = begun if begun >= price.min_tokens else 0
    reply = revision if call.reply is None else call.reply

    def dollars(found: int) -> float:
        """Returns the dollars of a thousand calls."""
        cost = cost_micro_usd(
            prices.of(MODEL), input_tokens=tokens, cached=found, written=0, output_tokens=reply
        )
        assert cost is not None, "litellm's list has a price for it"
        return cost / 1000

    return {
        "input": tokens,
        "cached": cached,
        "reply": reply,
        "usd_1000": dollars(0),
        "usd_1000_cached": dollars(cached),
    }


def _rows(templates: dict[str, Any], calls: dict[str, Any]) -> Iterator[str]:
    for held in (templates, calls):
        keys = list(next(iter(held.values())))
        yield f"{'':24}" + "".join(f"{key:>17}" for key in keys)
        for name, row in held.items():
            yield f"{name:24}" + "".join(f"{row[key]:>17,}" for key in keys)
