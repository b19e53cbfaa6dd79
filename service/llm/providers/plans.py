"""Describes calls: where they go, what of their prompts is cached, and where they are kept."""

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

    #: The deployment's name; empty if the model has only one.
    deployment: str = ""
    #: Tokens that the provider should find in its cache.
    predicted_tokens: int = 0
    #: Whether the index could be asked.
    known: bool = True
    #: Leading segments that are warm there.
    warm_segments: int = 0
    #: Tokens up to their end, as the index has them.
    warm_tokens: int = 0
    #: Whether the provider has reported these, so that they are no estimate.
    warm_exact: bool = False
    #: Seconds since the warm prefix was last used; None when nothing is warm.
    age_seconds: float | None = None
    #: Tokens that are warm at another deployment, if those are more.
    elsewhere_tokens: int = 0
    #: Tokens that the provider may still have after their time to live, and seconds since their
    #: last use; the warm ones if there are no others.
    deepest_tokens: int = 0
    deepest_age_seconds: float | None = None
    #: Other deployments that can be called when this one fails.
    spare: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class CallPlan:
    """How the transport makes a call. Nothing here changes the output."""

    deployment: str = ""
    #: Segments, from 0, at whose ends the provider shall cache the prefix.
    marks: tuple[int, ...] = ()
    #: By what a provider may find the prompt's prefix; empty: nothing.
    cache_key: str = ""
    #: Gets the text while the model writes it; None: the reply is not streamed.
    on_text: Callable[[str], None] | None = field(default=None, compare=False)


#: For a call without marks, to a model with one deployment.
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
