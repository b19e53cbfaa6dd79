"""Model calls by a script: asks, replies and failures in turn, and a ledger in memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from service.domain.calls.ledger import (
    Call,
    CallInProgress,
    CallScope,
    HeldCall,
    Lease,
    Reservation,
)
from service.domain.prompting.flows import ModelReply, ModelRequest, Purpose, Segment, SegmentKind
from service.domain.prompting.tokens import estimate_tokens
from service.llm.gateway.call_executor import CallExecutor
from service.llm.gateway.gateway import Gateway
from service.llm.gateway.routing import Router
from service.llm.providers.failures import ModelFailure
from service.llm.providers.plans import CallPlan
from service.llm.providers.requests import Requests
from service.llm.providers.transport import Completion
from tests.support.completions import completion
from tests.support.fake_index import DictIndex
from tests.support.prices import PLAIN

SCOPE = CallScope(
    tenant_id=UUID(int=1), session_key=UUID(int=2), memory_id=UUID(int=3), occasion="revise:1:1"
)
#: What is cached is gone after a second.
BRIEF = replace(PLAIN, write=1.0, ttl_seconds=1)


def make_ask(*texts: str, chunk: str = "chunk") -> ModelRequest:
    stable = [Segment(kind=SegmentKind.BASE, text=text) for text in texts]
    last = Segment(kind=SegmentKind.CHUNK, text=chunk, reusable=False)
    return ModelRequest(
        purpose=Purpose.REVISE,
        template="t/1",
        segments=(*stable, last),
        max_output_tokens=10,
    )


@dataclass
class Script:
    """Gives its replies, or raises its failures, one after the other."""

    outcomes: list[str | ModelFailure]
    asked: int = 0
    cached_tokens: int | None = None

    async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
        self.asked += 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, ModelFailure):
            raise outcome
        return completion(
            outcome,
            model,
            input_tokens=sum(estimate_tokens(one.text) for one in ask.segments),
            output_tokens=5,
            cached_tokens=self.cached_tokens,
            cost_micro_usd=7,
        )


@dataclass
class Ledger:
    calls: list[Call] = field(default_factory=list)

    #: The fence of each call that may be made.
    intents: dict[bytes, int] = field(default_factory=dict)
    #: Calls whose leases were renewed together, time after time.
    renewed_together: list[list[bytes]] = field(default_factory=list)

    def find_reply(self, key: bytes) -> ModelReply | None:
        for call in self.calls:
            if call.key == key and call.reply is not None:
                return call.as_reply()
        return None

    async def begin(
        self, scope: CallScope, key: bytes, wanted: Reservation
    ) -> ModelReply | CallInProgress | Lease:
        known = self.find_reply(key)
        if known is not None:
            return known
        if key in self.intents:
            return CallInProgress(seconds=0)
        self.intents[key] = 1
        return Lease(fence=1)

    async def renew(self, held: HeldCall) -> bool:
        return self.intents.get(held.key) == held.lease.fence

    async def renew_all(self, held: Sequence[HeldCall]) -> None:
        self.renewed_together.append([one.key for one in held])

    async def record(
        self, scope: CallScope, call: Call, lease: Lease, *, last: bool
    ) -> ModelReply | None:
        known = self.find_reply(call.key)
        if known is None:
            self.calls.append(call)
        if call.reply is not None or last:
            self.intents.pop(call.key, None)
        return None if call.reply is None else self.find_reply(call.key)


def gateway(
    script: Script,
    ledger: Ledger,
    index: DictIndex,
    waits: list[float],
    settings: Requests | None = None,
) -> Gateway:
    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    executor = CallExecutor(
        script, ledger, index, prices=lambda _: BRIEF, tries=3, lease_seconds=9, sleep=sleep
    )
    chooser = Router((), index, lambda _: BRIEF)
    return Gateway(
        ledger,
        chooser,
        executor,
        prices=lambda _: BRIEF,
        lease_seconds=9,
        settings=settings,
        sleep=sleep,
    )
