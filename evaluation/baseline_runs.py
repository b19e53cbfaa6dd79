"""Baselines, asked through the gateway: their calls are in the ledger like all others."""

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import palimpsest
from evaluation.baselines.reading import (
    Baseline,
    Carried,
    Found,
    NoRoom,
    Window,
    carry,
    read_carried,
    read_full,
    read_retrieved,
)
from evaluation.baselines.texts import Text
from evaluation.datasets import Document, Question
from evaluation.strategies import Failed, Outcome, Prepared, Spent, added
from service.app.gateways import ModelAccess
from service.domain.calls.ledger import CallScope
from service.domain.prompting.asking import NoUse
from service.domain.prompting.flows import Flow, ModelReply, ModelRequest
from service.domain.values.errors import PalimpsestError as Refused
from service.domain.values.tenancy import DEFAULT_TENANT, session_key
from service.llm.gateway.driver import drive
from service.llm.providers.failures import ModelFailure
from storage.calls import calls
from storage.engine.errors import StorageError

T = TypeVar("T")

_CARRYING = "baseline:recurrence:carry"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Read:
    """A document as a baseline keeps it."""

    text: Text
    #: For recurrence only.
    carried: Carried | None


class BaselineStrategy:
    """One of the paper's baselines."""

    def __init__(
        self,
        baseline: Baseline,
        access: ModelAccess,
        client: palimpsest.Client,
        *,
        model: str,
        window_tokens: int,
        session_of: Callable[[Document], str],
    ) -> None:
        self._baseline = baseline
        self._access = access
        self._client = client
        self._model = model
        self._session_of = session_of
        self._window = Window(
            tokens=window_tokens,
            count=access.facts_of(model).count,
            marker_key=access.marker_key,
        )

    async def prepare(self, document: Document) -> Prepared:
        """Returns a session for the calls; recurrence reads the document."""
        name = f"{self._session_of(document)}:{self._baseline}"
        try:
            await self._client.create_session(name, exist_ok=True, default_memory=False)
        except palimpsest.PalimpsestError as error:
            raise Failed(str(error)) from error
        text = Text([chunk.as_text() for chunk in document.chunks])
        if self._baseline is not Baseline.RECURRENCE:
            return Prepared(session=name, spent=Spent(), state=_Read(text=text, carried=None))
        carried = await self._drive(carry(text, self._window), name, _CARRYING)
        return Prepared(
            session=name,
            spent=await self._spent(name, _CARRYING),
            state=_Read(text=text, carried=carried),
        )

    async def ask(self, document: Document, prepared: Prepared, question: Question) -> Outcome:
        """Returns the answer, with what it cost by the ledger."""
        assert isinstance(prepared.state, _Read), "prepare() made it"
        occasion = f"baseline:{self._baseline}:{question.number}"
        flow = self._flow(prepared.state, question)
        found = await self._drive(flow, prepared.session, occasion)
        return Outcome(
            text=found.text,
            no_answer="" if found.text else "none",
            model=self._model,
            spent=await self._spent(prepared.session, occasion),
            seen=found.positions,
        )

    def _flow(self, read: _Read, question: Question) -> Flow[Found]:
        query, options = question.text, question.options
        if read.carried is not None:
            return read_carried(read.carried, query, options, self._window)
        if self._baseline is Baseline.RETRIEVAL:
            return read_retrieved(read.text, query, options, self._window)
        return read_full(self._baseline, read.text, query, options, self._window)

    async def _drive(
        self,
        flow: Generator[Sequence[ModelRequest], Sequence[ModelReply], T],
        name: str,
        occasion: str,
    ) -> T:
        scope = CallScope(
            tenant_id=DEFAULT_TENANT,
            session_key=session_key(DEFAULT_TENANT, name),
            memory_id=None,
            occasion=occasion,
        )

        def call(ask: ModelRequest) -> Awaitable[ModelReply]:
            return self._access.gateway.call(ask, model=self._model, scope=scope)

        try:
            return await drive(flow, call)
        except (ModelFailure, NoRoom, NoUse, Refused, StorageError) as error:
            raise Failed(str(error)) from error

    async def _spent(self, name: str, occasion: str) -> Spent:
        try:
            async with self._access.database.transaction(DEFAULT_TENANT) as tx:
                key = session_key(DEFAULT_TENANT, name)
                lines = (await calls.usage_of(tx, key, [occasion])).get(occasion, ())
        except StorageError as error:
            raise Failed(str(error)) from error
        return added(
            Spent(
                calls=line.calls,
                input_tokens=line.input_tokens,
                output_tokens=line.output_tokens,
                cost_micro_usd=line.cost_micro_usd,
            )
            for line in lines
        )
