"""Circuit breakers: while a deployment fails, no process calls it except for one probe at a time.

A model without deployments counts as one. A circuit opens when calls fail for a reason that is not
their step's: at once for what an operator has to change (a wrong key), else when calls of several
memories fail transiently, or with the same words, without a reply in between. One memory alone
opens none, since its text may be the reason. An open circuit is a row that all processes see.
`service.usecases.memories.recovery` wakes the work that waits for it: one item as a probe, and all
when the circuit has closed.
"""

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol
from uuid import UUID

import structlog
from opentelemetry import metrics

from service.domain.calls.conditions import Condition
from service.domain.prompting.faults import Fault
from service.domain.values.pausing import MAX_DOUBLINGS, spread
from service.llm.providers.failures import ModelFailure
from service.llm.providers.labels import LABELS
from service.telemetry.names import Attribute, Metric

_log = structlog.get_logger("palimpsest.llm")

#: Memories whose calls fail alike, without a reply in between, that open a circuit.
SEVERAL = 3
#: Seconds before the first probe; they double for each further one.
FIRST_PROBE_SECONDS = 1.0
#: The longest pause that a provider may ask for, in seconds.
MAX_ASKED_SECONDS = 300.0
#: How long conditions are cached, in seconds.
KNOWN_SECONDS = 1.0
#: Deployments, and kinds of failures of a deployment, that are remembered.
MAX_DEPLOYMENTS = 1000
MAX_KINDS = 100
#: Circuits that may be open, as clients name models. Beyond these each item pauses by itself.
MAX_OPEN = 200
#: When a reply closes a circuit, texts may have caused its failures, and would open it again and
#: again. So for a while, in seconds, twice as many memories have to fail alike to open it; the
#: number doubles each time, up to so many times.
CLEARED_SECONDS = 3600.0
MAX_CLEARED = 4


class ConditionStore(Protocol):
    """Stores conditions for all processes. Each method raises StorageError."""

    async def read(self) -> Sequence[Condition]:
        """Returns all conditions."""
        ...

    async def add(
        self, *, deployment: str, model: str, fault: Fault, cause: str, probe_seconds: float
    ) -> bool:
        """Adds a condition; returns False if that deployment has one already."""
        ...

    async def take_probe(self, deployment: str, next_seconds: float) -> bool:
        """Claims the probe that is due; returns False if another process has."""
        ...

    async def keep(
        self, *, deployment: str, fault: Fault, cause: str, probe_seconds: float
    ) -> None:
        """Records that a probe failed."""
        ...

    async def remove(self, condition: Condition) -> None:
        """Removes a condition that has passed."""
        ...


@dataclass(slots=True)
class _CircuitState:
    """What this process knows of a deployment."""

    #: Owners whose calls failed since the last reply, by the kind of failure.
    failed: OrderedDict[str, set[UUID]] = field(default_factory=OrderedDict)
    #: When the latest call with a reply began, by the monotonic clock.
    replied_at: float = float("-inf")


@dataclass(frozen=True, slots=True)
class _OpenCircuit:
    """An open circuit; times are by the monotonic clock."""

    condition: Condition
    #: When a probe is due.
    probe_at: float
    #: When this process first read it.
    heard_at: float


class Circuits:
    """Keeps the circuits of one process."""

    def __init__(
        self,
        store: ConditionStore,
        *,
        probe_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`probe_seconds`: the longest pause between probes, unless a provider asks for more."""
        self._store = store
        self._probe_seconds = probe_seconds
        self._monotonic = monotonic
        self._deployments: OrderedDict[str, _CircuitState] = OrderedDict()
        self._open: dict[str, _OpenCircuit] = {}
        #: By deployment and kind of failure: how often a reply closed the circuit, and until when
        #: that counts, by the monotonic clock.
        self._cleared: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()
        self._known_until = float("-inf")
        self._reading = asyncio.Lock()
        meter = metrics.get_meter("palimpsest.llm")
        self._opened = meter.create_counter(
            Metric.LLM_CIRCUITS_OPENED, description="Circuits of models that were opened"
        )

    def probe_at(self, deployment: str) -> float | None:
        """Returns when an open circuit may be probed, by the monotonic clock; None if closed."""
        known = self._open.get(deployment)
        return None if known is None else known.probe_at

    @property
    def open_now(self) -> Sequence[Condition]:
        """The open circuits that this process knows."""
        return [one.condition for one in self._open.values()]

    async def refresh(self) -> Sequence[Condition]:
        """Reads the open circuits of all processes. Raises StorageError."""
        found = await self._store.read()
        now = self._monotonic()
        before, self._open = self._open, {}
        for one in found:
            known = before.pop(one.deployment, None)
            same = known is not None and known.condition.since == one.since
            self._open[one.deployment] = _OpenCircuit(
                condition=one,
                probe_at=now + one.probe_seconds,
                heard_at=known.heard_at if known is not None and same else now,
            )
        for gone in before.values():
            self._clear(gone.condition)
        self._known_until = now + KNOWN_SECONDS
        return found

    async def admit(self, deployment: str) -> bool:
        """Admits a call; returns True if it is the probe of an open circuit.

        Raises ModelFailure, with `waits_for`, while the circuit is open; StorageError.
        """
        if self._monotonic() >= self._known_until:
            async with self._reading:
                if self._monotonic() >= self._known_until:
                    await self.refresh()
        known = self._open.get(deployment)
        if known is None:
            return False
        pause = self._pause(known.condition.failures, None)
        if self._monotonic() >= known.probe_at:
            taken = await self._store.take_probe(deployment, pause)
            # Claimed by this call or by another: until then there is no other probe.
            self._open[deployment] = replace(known, probe_at=self._monotonic() + pause)
            if taken:
                return True
        condition = known.condition
        raise ModelFailure(
            condition.cause, retryable=True, fault=condition.fault, waits_for=condition.model
        )

    async def replied(self, deployment: str, began: float) -> None:
        """Records a reply to a call that `began` then, by the monotonic clock; closes the circuit.

        A call that began before the circuit opened does not close it.
        """
        heard = self._heard(deployment)
        heard.failed.clear()
        heard.replied_at = max(heard.replied_at, began)
        known = self._open.get(deployment)
        if known is None or began < known.heard_at:
            return
        del self._open[deployment]
        self._clear(known.condition)
        await self._store.remove(known.condition)
        _log.info("model replies again", deployment=deployment, fault=known.condition.fault.value)

    def _clear(self, condition: Condition) -> None:
        """Remembers what opened a circuit that a reply has closed."""
        if not condition.fault.is_configuration:
            key = condition.deployment, _kind(condition.fault, condition.cause)
            times = min(self._times_cleared(key) + 1, MAX_CLEARED)
            self._cleared[key] = self._monotonic() + CLEARED_SECONDS, times
            self._cleared.move_to_end(key)
            if len(self._cleared) > MAX_DEPLOYMENTS:
                self._cleared.popitem(last=False)

    def _times_cleared(self, key: tuple[str, str]) -> int:
        until, times = self._cleared.get(key, (0.0, 0))
        return times if until > self._monotonic() else 0

    def _heard(self, deployment: str) -> _CircuitState:
        known = self._deployments.setdefault(deployment, _CircuitState())
        self._deployments.move_to_end(deployment)
        if len(self._deployments) > MAX_DEPLOYMENTS:
            self._deployments.popitem(last=False)
        return known

    async def failed(
        self,
        deployment: str,
        model: str,
        owner_id: UUID,
        failure: ModelFailure,
        *,
        began: float,
        probing: bool,
    ) -> ModelFailure:
        """Records a failed call; returns the failure for its caller, which says whether to wait.

        `began`: when the call began, by the monotonic clock. Raises StorageError.
        """
        fault = failure.fault
        if fault in (Fault.EXECUTOR_GONE, Fault.CALLED_OFF):
            # This says nothing about the deployment.
            return failure
        if not fault.is_deployment and not fault.is_ambiguous:
            # The deployment answers; the text is at fault.
            await self.replied(deployment, began)
            return failure
        known = self._open.get(deployment)
        if known is not None:
            return await self._still_open(known.condition, failure, probing=probing)
        if began < self._heard(deployment).replied_at:
            return failure
        if not failure.fault.is_configuration:
            kind = _kind(failure.fault, str(failure))
            owners = self._failed_alike(deployment, kind)
            # There was no reply since its last try. It may be the deployment all the same, so it
            # is retried as soon as if the circuit were open.
            is_again = owner_id in owners and failure.fault.passes
            owners.add(owner_id)
            if len(owners) < SEVERAL << self._times_cleared((deployment, kind)):
                if is_again:
                    return _copy(failure, longest_pause_seconds=self._probe_seconds)
                return failure
        await self._trip(deployment, model, failure)
        return _copy(failure, waits_for=model) if deployment in self._open else failure

    async def _still_open(
        self, known: Condition, failure: ModelFailure, *, probing: bool
    ) -> ModelFailure:
        if probing:
            pause = self._pause(known.failures, failure.retry_after_seconds)
            await self._store.keep(
                deployment=known.deployment,
                fault=failure.fault,
                cause=str(failure),
                probe_seconds=pause,
            )
            self._known_until = float("-inf")
        return _copy(failure, waits_for=known.model)

    async def _trip(self, deployment: str, model: str, failure: ModelFailure) -> None:
        self._heard(deployment).failed.clear()
        if len(self._open) >= MAX_OPEN:
            return
        pause = self._pause(0, failure.retry_after_seconds)
        fault, cause = failure.fault, str(failure)
        added = await self._store.add(
            deployment=deployment, model=model, fault=fault, cause=cause, probe_seconds=pause
        )
        await self.refresh()
        if added:
            self._opened.add(1, {Attribute.MODEL: LABELS.of(model), Attribute.FAULT: fault.value})
            _log.warning("circuit opened: only probes are sent", deployment=deployment, cause=cause)

    def _pause(self, failures: int, asked_seconds: float | None) -> float:
        doubled = FIRST_PROBE_SECONDS * 2.0 ** min(failures, MAX_DOUBLINGS)
        asked = min(asked_seconds or 0.0, MAX_ASKED_SECONDS)
        return max(spread(min(doubled, self._probe_seconds)), asked)

    def _failed_alike(self, deployment: str, kind: str) -> set[UUID]:
        failed = self._heard(deployment).failed
        owners = failed.setdefault(kind, set())
        if len(failed) > MAX_KINDS:
            failed.popitem(last=False)
        return owners


def _copy(
    failure: ModelFailure,
    *,
    waits_for: str | None = None,
    longest_pause_seconds: float | None = None,
) -> ModelFailure:
    copy = ModelFailure(
        str(failure),
        retryable=failure.retryable,
        retry_after_seconds=failure.retry_after_seconds,
        fault=failure.fault,
        waits_for=waits_for,
        longest_pause_seconds=longest_pause_seconds,
    )
    copy.__cause__ = failure
    return copy


def _kind(fault: Fault, cause: str) -> str:
    """Returns what failures with one cause share: that they are transient, or their words.

    Numbers in the words differ from memory to memory, and are left out.
    """
    return "passes" if fault.passes else re.sub(r"\d+", "#", cause.casefold())[:200]
