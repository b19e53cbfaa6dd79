"""How a call is made: by which deployment, with which marks, and what is expected of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from service.domain.calls.ledger import (
    Call,
    CallInProgress,
    CallScope,
    HeldCall,
    Lease,
    Reservation,
)
from service.domain.calls.prefix_index import Prefix
from service.domain.prompting.flows import ModelReply, ModelRequest
from service.llm.providers.streamed_reply import OnText


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """Where a call goes, and what of its prompt is warm there."""

    #: The deployment's name; empty where the model has one only.
    deployment: str = ""
    #: Tokens that the provider should find in its cache.
    predicted_tokens: int = 0
    #: Whether the index could be asked.
    known: bool = True
    #: Leading segments that are warm there.
    warm_segments: int = 0
    #: Tokens up to their end, as the index has them.
    warm_tokens: int = 0
    #: Whether these are what the provider said before, not an estimate.
    warm_exact: bool = False
    #: Since the warm prefix was last used, in seconds; None when nothing is warm.
    age_seconds: float | None = None
    #: Tokens that are warm at another deployment and not at this one.
    elsewhere_tokens: int = 0
    #: Tokens that the provider may still have though their time is over, and since when
    #: they were not used; the warm ones where there are no deeper ones.
    deepest_tokens: int = 0
    deepest_age_seconds: float | None = None
    #: Other deployments that can be asked when this one fails.
    spare: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class CallPlan:
    """What the transport has to know besides the ask. Nothing here changes the output."""

    deployment: str = ""
    #: Segments, from 0, at whose ends the provider shall keep the prefix.
    marks: tuple[int, ...] = ()
    #: What a provider may find the prompt's prefix by; empty: nothing.
    cache_key: str = ""
    #: Gets what the model writes while it writes; None: without a reader, and the reply
    #: comes in one piece.
    on_text: Callable[[str], None] | None = field(default=None, compare=False)


#: Of a call without marks, of a model with one deployment.
PLAIN = CallPlan()


@dataclass(frozen=True, kw_only=True, slots=True)
class WantedCall:
    """A call as its caller wants it, wherever it is made."""

    ask: ModelRequest
    #: Model as provider/name.
    model: str
    scope: CallScope
    #: SHA-256 over everything that affects the output, and the occasion.
    key: bytes
    prefix: Prefix
    #: How many of the owner's calls may be with the model at once; 0: there is no bound.
    at_once: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class CallRequest(WantedCall):
    """A call for an executor, in this process or another."""

    lease: Lease
    #: Until when the lease certainly lasts, by the machine's monotonic clock.
    lease_deadline: float
    route: Route
    plan: CallPlan
    #: Whether it finds out if the deployment replies again: then it is tried once.
    probes: bool = False
    #: The reader of the stream; as in `service.llm.providers.streamed_reply`.
    on_text: OnText | None = field(default=None, compare=False)


def deployment_name(model: str, deployment: str) -> str:
    """Returns what has its own cache and circuit: the deployment, else the model."""
    return deployment or model


class OutcomeLedger(Protocol):
    """Keeps calls durably: their intents, leases and outcomes."""

    async def begin(
        self, scope: CallScope, key: bytes, wanted: Reservation
    ) -> ModelReply | CallInProgress | Lease:
        """Returns the reply that was paid for already, else the right to make the call, if free.

        Raises BudgetExhausted.
        """
        ...

    async def renew(self, held: HeldCall) -> bool:
        """Renews a lease from now on; returns False when another process has taken it."""
        ...

    async def renew_all(self, held: Sequence[HeldCall]) -> None:
        """Renews many leases at once, of any tenants, in the background."""
        ...

    async def record(
        self, scope: CallScope, call: Call, lease: Lease, *, last: bool
    ) -> ModelReply | None:
        """Writes a call; returns the reply that counts, or None for a failed call.

        A reply or the `last` try ends the intent.
        """
        ...
