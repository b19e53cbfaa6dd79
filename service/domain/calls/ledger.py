"""Model calls as the ledger keeps them."""

from dataclasses import dataclass
from uuid import UUID

from service.domain.prompting.ends import End
from service.domain.prompting.flows import ModelReply, Purpose


@dataclass(frozen=True, kw_only=True, slots=True)
class CallScope:
    """The owner of a call, and its occasion."""

    tenant_id: UUID
    session_key: UUID
    #: None for a call that no memory makes.
    memory_id: UUID | None
    #: What the call is made for, unique within the memory: "revise:17:40" for the step
    #: that makes revision 17 and ends at position 40, "answer:<id>" for an answer,
    #: "schema:<id>" for a schema draft. The same ask on the same occasion is the same
    #: call, so a crash does not pay for it twice; the same ask on another occasion is a
    #: new call.
    occasion: str
    #: The session's: what was begun for one that was deleted is not made for its successor.
    #: None: of whatever session has the key.
    incarnation: int | None = None
    #: The epoch of the memory's claim: the reply is not kept where the memory was redacted since.
    #: None: no claim makes the call.
    epoch: int | None = None

    @property
    def owner_id(self) -> UUID:
        """The memory, or the session when no memory makes the call."""
        return self.session_key if self.memory_id is None else self.memory_id


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One model call that came back, with what it cost."""

    #: SHA-256 over everything that affects the output, and the occasion.
    key: bytes
    purpose: Purpose
    #: Name and version of the prompt template.
    template: str
    #: Model as provider/name.
    model: str
    #: The reply as it came; None when the call failed.
    reply: str | None
    #: Why it failed, in a sentence; None when it did not.
    failure: str | None
    #: Tokens of the prompt, as the provider reports them.
    input_tokens: int
    #: Those of them that the prefix cache predicted to be warm.
    predicted_cached_tokens: int
    #: Those of them that the provider reports as cached; None is unknown, not 0.
    reported_cached_tokens: int | None
    #: Tokens the provider says it wrote to its cache; None is unknown.
    cache_write_tokens: int | None
    #: Tokens of the reply.
    output_tokens: int
    #: Price in millionths of a US dollar; None when no price is known.
    cost_micro_usd: int | None
    #: Wall time of the call.
    latency_ms: int
    #: Which deployment of the model was asked; empty where there is one only.
    deployment: str = ""
    #: Why the provider's cache had other tokens than predicted; None when unknown.
    residual: str | None = None
    #: Tokens of the reply that were spent on thinking; None is unknown.
    reasoning_tokens: int | None = None
    #: How the reply ended; says nothing of a call that failed.
    end: End = End.COMPLETE
    #: As in `ModelReply`.
    said: str = ""

    def as_reply(self) -> ModelReply | None:
        """Returns the reply for the flow that asked; None for a call that failed."""
        if self.reply is None:
            return None
        return ModelReply(
            text=self.reply,
            model=self.model,
            input_tokens=self.input_tokens,
            cached_tokens=self.reported_cached_tokens,
            output_tokens=self.output_tokens,
            reasoning_tokens=self.reasoning_tokens,
            end=self.end,
            said=self.said,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """The most that a call may use, before it is made."""

    purpose: Purpose
    #: Model as provider/name.
    model: str
    deployment: str
    #: Tokens of prompt and reply at most, estimated.
    tokens: int
    #: Their price in millionths of a US dollar; None when no price is known.
    micro_usd: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """The right to make a call, until it runs out or is renewed."""

    #: Fencing token: rises whenever another executor takes the call over.
    fence: int


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldCall:
    """A call, and the right to make it."""

    scope: CallScope
    #: As in `Call`.
    key: bytes
    lease: Lease

    @property
    def lease_row(self) -> tuple[UUID, bytes, int]:
        """What its intent is found by as long as it is ours."""
        return self.scope.session_key, self.key, self.lease.fence


class Gone(Exception):
    """The session was deleted: no call is made for it any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallInProgress:
    """Another executor has the right to make the call."""

    #: After so long the right runs out, unless it is renewed.
    seconds: float
