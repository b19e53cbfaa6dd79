"""Compares what a memory's newest steps cost with other ways of folding."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from service.domain.prism import prompts, schedules
from service.domain.prism.amendments import Amendment
from service.domain.prism.schedules import LoggedStep, StepLog, Tokens
from service.domain.prism.spec import Encoding, PrismSpec
from service.domain.prompting.tokens import TOKEN_BYTES, estimate_tokens
from service.domain.spend.prices import LogCost, ModelPrices, added, cost_micro_usd
from service.settings.config import Config
from storage.engine.database import Database, Transaction
from storage.memories.memories import StoredMemory
from storage.prism import states
from storage.spend import costs
from storage.spend.costs import RevisionFacts, StepFacts
from storage.spend.spend import SpendFilter

#: Steps that are compared: the newest ones.
MAX_STEPS = 300
#: Bytes of the memory times steps, at most: what the simulation takes grows with both.
MAX_STEP_BYTES = 50_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """The newest steps of a memory under several ways of folding."""

    steps: int
    #: Steps that the memory has.
    all_steps: int
    #: The compared steps read the positions from_position + 1 to to_position.
    from_position: int
    to_position: int
    #: By whose prices.
    model: str
    #: As the ledger has these steps.
    measured: LogCost
    #: Simulated, as all that follow: with the folds that were made.
    as_kept: LogCost
    in_place: LogCost
    amendments: LogCost
    adaptive: LogCost


@dataclass(frozen=True, kw_only=True, slots=True)
class _Facts:
    """What is read for a comparison."""

    log: StepLog
    #: Steps before whose prompts the memory was folded, from 0 on.
    folds: tuple[int, ...]
    steps: Sequence[StepFacts]
    all_steps: int
    measured: LogCost


class Comparer:
    """Compares in one server process, one memory at a time."""

    def __init__(
        self, database: Database, prices: Callable[[str], ModelPrices], config: Config
    ) -> None:
        self._database = database
        self._prices = prices
        self._config = config
        # It computes for a second or so: many at once would delay all other calls.
        self._alone = asyncio.Lock()

    async def compare(self, tenant_id: UUID, stored: StoredMemory) -> Compared | None:
        """Returns the comparison; None when the memory has made no step."""
        spec = PrismSpec.of(stored)
        model = spec.model or self._config.model
        async with self._alone:
            async with self._database.transaction(tenant_id, name="costs") as tx:
                facts = await self._read(tx, stored)
            if facts is None:
                return None
            prices = self._prices(model)
            return await asyncio.to_thread(_compared, facts, spec, model, prices)

    async def _read(self, tx: Transaction, stored: StoredMemory) -> _Facts | None:
        key = (stored.session_key, stored.memory_id)
        steps = await costs.newest_steps(tx, *key, MAX_STEPS)
        if not steps:
            return None
        newest = await states.get_nearest(tx, *key, stored.revision)
        room = max(MAX_STEP_BYTES // max(len(newest.base), 1), 1)
        steps = steps[-room:]
        first = steps[0].revision
        rows = await states.get_nearest(tx, *key, first - 1)
        schema = PrismSpec.of(stored).schema()
        before = rows.memory(schema)
        revisions = await costs.revisions_from(tx, *key, first)
        replies = await self._replies(tx, stored, steps)
        logged, folds = _logged(steps, revisions, replies)
        log = StepLog(
            schema=schema,
            steps=logged,
            task_tokens=estimate_tokens(self._task(PrismSpec.of(stored))),
            base_json=before.value_json,
        )
        return _Facts(
            log=log,
            folds=folds,
            steps=steps,
            all_steps=await costs.count_steps(tx, *key),
            measured=added(replies.values()),
        )

    async def _replies(
        self, tx: Transaction, stored: StoredMemory, steps: Sequence[StepFacts]
    ) -> dict[int, LogCost]:
        """Returns what the ledger has for each of the steps."""
        wanted = SpendFilter(memory_id=stored.memory_id)
        named = {f"revise:{one.revision}:{one.to_position}": one.revision for one in steps}
        found = await costs.occasions(tx, stored.session_key, wanted, list(named))
        return {named[name]: cost for name, cost in found.items()}

    def _task(self, spec: PrismSpec) -> str:
        rules = spec.rules(self._config.limits.max_memory_bytes)
        return prompts.revise_task(spec, rules)


def _logged(
    steps: Sequence[StepFacts],
    revisions: Sequence[RevisionFacts],
    replies: dict[int, LogCost],
) -> tuple[Sequence[LoggedStep], tuple[int, ...]]:
    """Returns the steps to simulate, and those before which the memory was folded."""
    number = -1
    changes: list[list[Amendment]] = []
    folds: set[int] = set()
    mine = {one.revision for one in steps}
    for one in revisions:
        if one.revision in mine:
            number += 1
            changes.append([])
        # What is changed by hand, or consolidated, is there for the next step.
        changes[number] += one.amendments
        if one.folds and number + 1 < len(steps):
            folds.add(number + 1)
    logged = [
        LoggedStep(
            amendments=tuple(amended),
            chunk_tokens=sum(-(-size // TOKEN_BYTES) for size in step.chunk_bytes),
            output_tokens=replies[step.revision].output_tokens if step.revision in replies else 0,
        )
        for step, amended in zip(steps, changes, strict=True)
    ]
    return logged, tuple(sorted(folds))


def _compared(facts: _Facts, spec: PrismSpec, model: str, prices: ModelPrices) -> Compared:
    log, steps = facts.log, facts.steps
    found = schedules.compare(log, prices)
    in_place = spec.encoding is Encoding.IN_PLACE
    kept = found.in_place if in_place else schedules.scheduled(log, prices, facts.folds)

    def cost(tokens: Tokens) -> LogCost:
        total = tokens.cached + tokens.written + tokens.fresh
        return LogCost(
            prompts=len(steps),
            total_tokens=total,
            cached_tokens=tokens.cached,
            written_tokens=tokens.written,
            output_tokens=tokens.output,
            cost_micro_usd=cost_micro_usd(
                prices,
                input_tokens=total,
                cached=tokens.cached,
                written=tokens.written,
                output_tokens=tokens.output,
            ),
        )

    return Compared(
        steps=len(steps),
        all_steps=facts.all_steps,
        from_position=steps[0].from_position,
        to_position=steps[-1].to_position,
        model=model,
        measured=facts.measured,
        as_kept=cost(kept),
        in_place=cost(found.in_place),
        amendments=cost(found.amendments),
        adaptive=cost(found.adaptive),
    )
