"""Measures what a turn of a long talk costs as the memory grows, by what its steps are shown.

2,000 turns of a made-up conversation, one message a step, for a memory of each way; the model
is a script that knows only what its prompt shows (`verification.benchmarks.talk`). `value` is the
prompt tokens per turn of focused steps in the last tenth of the turns, divided by those in the
tenth that begins when the budget is first full. Dollars are those of gpt-4.1-mini, with what
is predicted to come from its cache; `common` is the share of prompt tokens that have the same
beginning as the prompt before, of which a provider may find more than the segments show. The
memories are compared with the conversation: facts that they have more than once, with a value
that was corrected since, or not at all. Nothing is measured in seconds: the same seed gives the
same figures everywhere. `--seconds` below 60 makes the conversation shorter.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from uuid import UUID

from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.prism import asking as prism
from service.domain.prism import folding, pacing, prompts
from service.domain.prism.amendments import Revision
from service.domain.prism.folding import FoldState, PromptSizes
from service.domain.prism.memory import PrismMemory
from service.domain.prism.pacing import Need, StepBounds, Wish
from service.domain.prism.spec import FOLD_TOKENS, Encoding, PrismSpec, StepScope
from service.domain.prompting.flows import Flow, ModelReply, ModelRequest
from service.domain.spend.prices import MICRO, cost_micro_usd
from service.domain.values.beginnings import common_characters
from service.llm.prefix_cache.cache import expected_tokens, prefix_of
from service.llm.providers.facts import Facts
from service.llm.providers.prices import Prices
from service.settings.config import Config
from tests.unit.support.logged import logged_chunk
from verification.benchmarks.talk import SCHEMA, TASK, Listener, Talk, judged

MODEL = "openai/gpt-4.1-mini"
TURNS = 2000
#: Turns that are taken together in a figure: a tenth.
SHARE = 10
FULL_SECONDS = 60
GOAL = 1.2
_SPEC = PrismSpec(schema_source=SCHEMA, task=TASK, model=MODEL, chunk_tokens=1)


def _ways(budget: int) -> dict[str, PrismSpec]:
    focused = replace(_SPEC, steps=StepScope.FOCUSED, memory_tokens=budget)
    return {
        "focused": focused,
        "focused, half of it": replace(focused, memory_tokens=budget // 2),
        "in place": replace(_SPEC, encoding=Encoding.IN_PLACE),
        "amendments": _SPEC.changed({"encoding": Encoding.AMENDMENTS, "fold_tokens": FOLD_TOKENS}),
        "adaptive": _SPEC,
        "adaptive, consolidated": replace(_SPEC, memory_tokens=budget),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this benchmark."""
    parser.add_argument(
        "--budget", type=int, default=4000, help="memory_tokens of those that have one (4,000)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the conversation (default 1)")


def run(seconds: float, *, budget: int, seed: int) -> dict[str, Any]:
    """Measures; see the module."""
    turns = min(TURNS, max(int(TURNS * seconds / FULL_SECONDS), SHARE))
    talk = Talk(turns, seed)
    rows: dict[str, Any] = {}
    print(f"{turns} turns, memory_tokens {budget:,}, {MODEL}")
    for name, spec in _ways(budget).items():
        memory = _Kept(spec, talk)
        for number in range(1, turns + 1):
            memory.step(number)
        rows[name] = memory.report(budget)
        print(f"{name:<24}{rows[name]}")
    value = rows["focused"]["growth"]
    return {"value": value, "goal": f"<= {GOAL}", "turns": turns, "budget": budget, "ways": rows}


@dataclass(slots=True)
class _Spent:
    """What the calls of one turn took, in tokens."""

    calls: int = 0
    prompt: int = 0
    cached: int = 0
    common: int = 0
    output: int = 0
    #: Tokens of the memory when the turn was done.
    live: int = 0


class _Kept:
    """A memory that is kept as a worker keeps it, with the calls counted."""

    def __init__(self, spec: PrismSpec, talk: Talk) -> None:
        facts = Facts(Config()).of(MODEL)
        self._spec = spec
        self._talk = talk
        self._model = Listener(talk)
        self._count: Callable[[str], int] = lru_cache(maxsize=20_000)(facts.count)
        self._prices = Prices(Config()).of(MODEL)
        self._rules = spec.rules(2**20)
        task = prompts.revise_task(spec, self._rules, is_focused=spec.steps is StepScope.FOCUSED)
        self._bounds = StepBounds.of(facts.window_tokens, facts.count(task), 2**20)
        self.memory = PrismMemory.create(spec.schema(), spec.encoding, self._count)
        self._fold_state = FoldState.anew(0)
        self._revision = self._consolidated = 0
        self._sent: set[bytes] = set()
        self._before = ""
        self._turns: list[_Spent] = []
        self._spent = _Spent()

    def step(self, number: int) -> None:
        """Runs one turn: the folds and consolidations that are due, then the step."""
        self._spent = _Spent()
        while (need := self._need(number - 1)) is not Need.STEP:
            assert need is not Need.ROOM
            (self._fold if need is Need.FOLD else self._consolidate)()
        focus = pacing.focus_tokens(self._spec, self.memory, self._bounds)
        adaptive = self._spec.encoding is Encoding.ADAPTIVE and focus is None
        if adaptive and self.memory.batches:
            sizes = PromptSizes.of(self.memory, self._bounds.task_tokens, self._fold_state.prompted)
            if folding.is_due(sizes, self._fold_state, self._prices):
                self._fold()
        flow = prism.revise(
            self._spec,
            self.memory,
            [_chunk(number, self._talk.turns[number - 1].text)],
            marker_key=b"a key",
            rules=self._rules,
            focus_tokens=focus,
        )
        made = self._driven(flow)
        sizes = PromptSizes.of(self.memory, self._bounds.task_tokens, self._fold_state.prompted)
        state = self._fold_state
        self._fold_state = state.stepped(sizes, self._prices) if adaptive else state.skipped()
        self._revision += 1
        self.memory = self.memory.apply(self._revision, made.amendments)
        self._spent.live = self.memory.live_tokens
        self._turns.append(self._spent)

    def _need(self, applied: int) -> Need:
        wish = Wish(
            applied_position=applied,
            consolidate_position=None,
            consolidated_tokens=self._consolidated,
        )
        return pacing.next_need(self._spec, self.memory, self._bounds, wish)

    def _fold(self) -> None:
        self._revision += 1
        if self._spec.encoding is Encoding.ADAPTIVE:
            self.memory, self._fold_state = folding.fold(
                self.memory, self._fold_state, self._prices
            )
        else:
            self.memory = self.memory.fold()

    def _consolidate(self) -> None:
        flow = prism.consolidate(
            self._spec,
            self.memory,
            marker_key=b"a key",
            rules=self._rules,
            budget_tokens=pacing.goal_tokens(self._spec, self.memory, self._bounds),
        )
        made = self._driven(flow)
        self._revision += 1
        self.memory = self.memory.apply(self._revision, made.amendments).fold()
        self._consolidated = self.memory.live_tokens
        self._fold_state = FoldState.anew(self._revision)

    def _driven(self, flow: Flow[Revision]) -> Revision:
        try:
            asks = next(flow)
            while True:
                asks = flow.send([self._called(ask) for ask in asks])
        except StopIteration as end:
            made: Revision = end.value
            return made

    def _called(self, ask: ModelRequest) -> ModelReply:
        text = self._model.reply(ask)
        prefix = prefix_of(ask.segments, model=MODEL, tenant_id=UUID(int=1), owner_id=UUID(int=2))
        sizes = [self._count(segment.text) for segment in ask.segments]
        warm = [n for n, one in enumerate(prefix.ids, start=1) if one in self._sent]
        self._sent.update(prefix.ids)
        spent, whole = self._spent, ask.text
        spent.calls += 1
        spent.prompt += sum(sizes)
        spent.cached += expected_tokens(sum(sizes[: max(warm, default=0)]), self._prices)
        alike = common_characters(self._before, whole) / len(whole)
        spent.common += expected_tokens(int(alike * sum(sizes)), self._prices)
        spent.output += self._count(text)
        self._before = whole
        return ModelReply(text=text, model=MODEL)

    def report(self, budget: int) -> dict[str, Any]:
        """Returns the figures of the memory and of all its turns."""
        turns = self._turns
        some = max(len(turns) // SHARE, 1)
        budget = self._spec.memory_tokens or budget
        full = next((n for n, one in enumerate(turns) if one.live > budget), len(turns) - some)
        at_first, at_last = turns[full : full + some], turns[-some:]
        total = _total(turns)
        return {
            "growth": round(_per_turn(at_last) / _per_turn(at_first), 3),
            "full_at_turn": full + 1,
            "prompt_tokens_when_full": round(_per_turn(at_first)),
            "prompt_tokens_at_last": round(_per_turn(at_last)),
            "calls_per_100_turns": round(100 * total.calls / len(turns), 1),
            "cached": round(total.cached / total.prompt, 3),
            "common": round(total.common / total.prompt, 3),
            "usd_per_1000_turns": self._usd(turns),
            "usd_per_1000_turns_at_last": self._usd(at_last),
            "memory_tokens_at_last": turns[-1].live,
            **judged(self._talk, self.memory.value),
        }

    def _usd(self, turns: list[_Spent]) -> float:
        total = _total(turns)
        micro = cost_micro_usd(
            self._prices,
            input_tokens=total.prompt,
            cached=total.cached,
            written=0,
            output_tokens=total.output,
        )
        assert micro is not None, "the model is priced"
        return round(micro / MICRO / len(turns) * 1000, 2)


def _total(turns: list[_Spent]) -> _Spent:
    return _Spent(
        calls=sum(one.calls for one in turns),
        prompt=sum(one.prompt for one in turns),
        cached=sum(one.cached for one in turns),
        common=sum(one.common for one in turns),
        output=sum(one.output for one in turns),
    )


def _per_turn(turns: list[_Spent]) -> float:
    return _total(turns).prompt / len(turns)


def _chunk(position: int, text: str) -> Any:
    return logged_chunk(position, Chunk(kind=ChunkKind.MESSAGE, role="user", text=text))
