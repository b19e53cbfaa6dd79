"""Step tools: defines what the methods of all kinds of memories, and their engines, share."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from service.domain.prompting.cutting import Cutter
from service.domain.prompting.flows import Flow, ModelReply, ModelRequest
from service.domain.spend.prices import ModelPrices
from service.llm.gateway.driver import drive
from service.llm.gateway.gateway import Gateway
from service.llm.providers.facts import ModelFacts
from service.llm.splitter import first_piece
from service.settings.config import Config
from storage.engine.claims import Claim
from storage.engine.database import Database

T = TypeVar("T")

#: More tries than any flow makes of one prompt.
RETRIED_ATTEMPTS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTools:
    """What advances memories in one worker process."""

    database: Database
    gateway: Gateway
    #: What is known of a model, by its name, and what it costs.
    facts: Callable[[str], ModelFacts]
    prices: Callable[[str], ModelPrices]
    #: Derives the marks about texts from outside.
    marker_key: bytes
    config: Config
    cut: Cutter = first_piece

    def model(self, held: Claim) -> str:
        """Returns the model that a memory asks."""
        return held.spec.model or self.config.model

    async def ask(
        self,
        flow: Flow[T],
        held: Claim,
        occasion: str,
        *,
        at_once: int = 0,
        check: Callable[[ModelRequest], None] | None = None,
    ) -> T:
        """Runs a flow of a memory's step; `occasion` is unique within the memory.

        At most `at_once` calls of the memory are with the model; 0: no bound. `check` refuses a
        request by what it raises.
        """
        model, scope = self.model(held), held.scope(occasion)

        async def call(request: ModelRequest) -> ModelReply:
            if check is not None:
                check(request)
            # A memory that was retried after replies of no use is asked anew: they are in the
            # ledger, and as the same request it would get them again, for ever.
            attempt = request.attempt + RETRIED_ATTEMPTS * held.retries
            anew = replace(request, attempt=attempt)
            return await self.gateway.call(anew, model=model, scope=scope, at_once=at_once)

        return await drive(flow, call)
