"""When circuits open, which call may probe, and when they close."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from service.domain.calls.conditions import Condition
from service.domain.prompting.faults import Fault
from service.llm.gateway.circuits import MAX_OPEN, SEVERAL, Circuits
from service.llm.providers.failures import ModelFailure

PLACE = MODEL = "openai/x"


@dataclass
class Stored:
    """Conditions as a database has them, on a clock of the test's own."""

    now: float = 0.0
    rows: dict[str, tuple[Condition, float]] = field(default_factory=dict)
    removed: list[Condition] = field(default_factory=list)

    async def read(self) -> Sequence[Condition]:
        return [replace(one, probe_seconds=at - self.now) for one, at in self.rows.values()]

    async def add(
        self, *, deployment: str, model: str, fault: Fault, cause: str, probe_seconds: float
    ) -> bool:
        if deployment in self.rows:
            return False
        row = Condition(
            deployment=deployment,
            model=model,
            fault=fault,
            cause=cause,
            failures=1,
            since=datetime.now(UTC),
            probe_seconds=0.0,
        )
        self.rows[deployment] = row, self.now + probe_seconds
        return True

    async def take_probe(self, deployment: str, next_seconds: float) -> bool:
        row, at = self.rows[deployment]
        if at > self.now:
            return False
        tried = replace(row, failures=row.failures + 1)
        self.rows[deployment] = tried, self.now + next_seconds
        return True

    async def keep(
        self, *, deployment: str, fault: Fault, cause: str, probe_seconds: float
    ) -> None:
        row, _ = self.rows[deployment]
        kept = replace(row, fault=fault, cause=cause)
        self.rows[deployment] = kept, self.now + probe_seconds

    async def remove(self, condition: Condition) -> None:
        self.rows.pop(condition.deployment, None)
        self.removed.append(condition)


def circuits(stored: Stored) -> Circuits:
    return Circuits(stored, probe_seconds=30.0, monotonic=lambda: stored.now)


def failure(fault: Fault, said: str = "it said 1", **more: float) -> ModelFailure:
    return ModelFailure(
        said, retryable=fault.passes, fault=fault, retry_after_seconds=more.get("after")
    )


async def fail(
    one: Circuits, error: ModelFailure, owner: UUID | None = None, *, probing: bool = False
) -> ModelFailure:
    began = one._monotonic()
    return await one.failed(PLACE, MODEL, owner or uuid4(), error, began=began, probing=probing)


@pytest.mark.parametrize("fault", [one for one in Fault if one.is_configuration])
async def test_what_an_operator_has_to_change_opens_it_at_once(fault: Fault) -> None:
    stored = Stored()
    one = circuits(stored)
    assert not await one.admit(PLACE)
    assert (await fail(one, failure(fault))).waits_for == MODEL
    with pytest.raises(ModelFailure, match="it said") as caught:
        await one.admit(PLACE)
    assert (caught.value.waits_for, caught.value.fault) == (MODEL, fault)


@pytest.mark.parametrize("fault", [Fault.UNREACHABLE, Fault.FAILING, Fault.RATE_LIMITED])
async def test_what_passes_opens_it_after_several_in_a_row(fault: Fault) -> None:
    stored = Stored()
    one = circuits(stored)
    for _ in range(SEVERAL - 1):
        assert (await fail(one, failure(fault))).waits_for is None
    await one.replied(PLACE, one._monotonic())
    for _ in range(SEVERAL - 1):
        assert (await fail(one, failure(fault))).waits_for is None
    assert (await fail(one, failure(fault))).waits_for == MODEL


@pytest.mark.parametrize("fault", [Fault.UNREACHABLE, Fault.FAILING, Fault.RATE_LIMITED])
async def test_few_memories_that_fail_for_ever_open_nothing(fault: Fault) -> None:
    stored = Stored()
    one = circuits(stored)
    poisoned = [uuid4() for _ in range(SEVERAL - 1)]
    for _ in range(50):
        for owner in poisoned:
            assert (await fail(one, failure(fault), owner)).waits_for is None
        assert not await one.admit(PLACE)
    assert not stored.rows


async def test_what_fails_alone_is_tried_soon_until_others_are_replied_to() -> None:
    stored = Stored()
    one = circuits(stored)
    owner = uuid4()
    for _ in range(3):
        first = await fail(one, failure(Fault.FAILING), owner)
        assert first.longest_pause_seconds is None
        # It may be the deployment: then it is to continue soon after.
        again = await fail(one, failure(Fault.FAILING), owner)
        assert again.longest_pause_seconds == 30.0
        await one.replied(PLACE, stored.now)


async def test_a_thousand_that_fail_are_held_by_one_probe_at_a_time() -> None:
    stored = Stored()
    one = circuits(stored)
    calls = 0
    owners = [uuid4() for _ in range(1000)]
    for _ in range(100):
        stored.now += 1
        for owner in owners:
            try:
                probing = await one.admit(PLACE)
            except ModelFailure:
                continue
            calls += 1
            await fail(one, failure(Fault.FAILING), owner, probing=probing)
    # Probes after 1, 2, 4, 8, 16 s and then every 15 to 30 s.
    assert calls <= SEVERAL + 15


async def test_the_same_refusal_of_several_memories_is_the_deployments() -> None:
    stored = Stored()
    one = circuits(stored)
    poisoned = uuid4()
    refusal = Fault.REQUEST_REFUSED
    for number in range(10):
        held = await fail(one, failure(refusal, f"max {number} is too large"), poisoned)
        assert held.waits_for is None, "one memory alone proves nothing"
    for number in range(SEVERAL - 2):
        held = await fail(one, failure(refusal, f"max {number} is too large"))
        assert held.waits_for is None
    assert (await fail(one, failure(refusal, "something else"))).waits_for is None
    assert (await fail(one, failure(refusal, "max 99 is too large"))).waits_for == MODEL


async def test_a_reply_in_between_says_that_refusals_are_the_texts() -> None:
    one = circuits(Stored())
    for _ in range(SEVERAL * 3):
        assert (await fail(one, failure(Fault.REQUEST_REFUSED))).waits_for is None
        await one.replied(PLACE, one._monotonic())


@pytest.mark.parametrize("fault", [Fault.CONTENT_REFUSED, Fault.TOO_LONG])
async def test_what_is_in_the_text_shows_that_the_place_answers(fault: Fault) -> None:
    stored = Stored()
    one = circuits(stored)
    await fail(one, failure(Fault.KEY_REFUSED))
    stored.now += 5
    assert await one.admit(PLACE)
    assert (await fail(one, failure(fault), probing=True)).waits_for is None
    assert not stored.rows
    assert not await one.admit(PLACE)


@pytest.mark.parametrize("fault", [Fault.CALLED_OFF, Fault.EXECUTOR_GONE])
async def test_what_says_nothing_of_the_place_changes_nothing(fault: Fault) -> None:
    stored = Stored()
    one = circuits(stored)
    for _ in range(SEVERAL * 2):
        assert (await fail(one, failure(fault))).waits_for is None
    await fail(one, failure(Fault.KEY_REFUSED))
    await fail(one, failure(fault), probing=True)
    assert stored.rows


async def test_one_probe_at_a_time_whatever_processes_there_are() -> None:
    stored = Stored()
    several = [circuits(stored) for _ in range(5)]
    await fail(several[0], failure(Fault.KEY_REFUSED))
    probes = 0
    for _ in range(600):
        stored.now += 1
        for one in several:
            try:
                probing = await one.admit(PLACE)
            except ModelFailure:
                continue
            assert probing
            probes += 1
            await fail(one, failure(Fault.KEY_REFUSED), probing=True)
    # 1, 2, 4, 8, 16 and then every 15 to 30 s.
    assert 20 <= probes <= 50


async def test_a_reply_closes_it_for_all() -> None:
    stored = Stored()
    one, other = circuits(stored), circuits(stored)
    await fail(one, failure(Fault.KEY_REFUSED))
    stored.now += 5
    assert await one.admit(PLACE)
    with pytest.raises(ModelFailure):
        await other.admit(PLACE)
    await one.replied(PLACE, one._monotonic())
    assert [gone.deployment for gone in stored.removed] == [PLACE]
    stored.now += 2
    assert not await other.admit(PLACE)


async def test_a_provider_is_not_asked_before_its_time() -> None:
    stored = Stored()
    one = circuits(stored)
    for _ in range(SEVERAL):
        await fail(one, failure(Fault.RATE_LIMITED, after=100.0))
    for _ in range(99):
        stored.now += 1
        with pytest.raises(ModelFailure):
            await one.admit(PLACE)
    stored.now += 2
    assert await one.admit(PLACE)


async def test_a_provider_that_asks_for_hours_is_asked_again_all_the_same() -> None:
    stored = Stored()
    one = circuits(stored)
    for _ in range(SEVERAL):
        await fail(one, failure(Fault.RATE_LIMITED, after=36_000.0))
    stored.now += 301
    assert await one.admit(PLACE)


async def test_a_reply_to_a_call_from_before_closes_nothing() -> None:
    stored = Stored()
    one = circuits(stored)
    before = stored.now
    stored.now += 60
    await fail(one, failure(Fault.KEY_REFUSED))
    await one.replied(PLACE, before)
    assert stored.rows
    with pytest.raises(ModelFailure):
        await one.admit(PLACE)


async def test_failures_of_calls_from_before_a_reply_open_nothing() -> None:
    stored = Stored()
    one = circuits(stored)
    before = stored.now
    stored.now += 60
    await one.replied(PLACE, stored.now)
    for fault in (Fault.KEY_REFUSED, *[Fault.FAILING] * 5):
        late = failure(fault)
        await one.failed(PLACE, MODEL, uuid4(), late, began=before, probing=False)
    assert not stored.rows


@pytest.mark.parametrize("fault", [Fault.REQUEST_REFUSED, Fault.FAILING])
async def test_texts_that_fail_alike_open_it_ever_more_rarely(fault: Fault) -> None:
    stored = Stored()
    one = circuits(stored)
    poisoned = [uuid4() for _ in range(SEVERAL)]
    opened = 0
    for _ in range(20):
        for owner in poisoned:
            held = await fail(one, failure(fault), owner)
            opened += held.waits_for is not None
        stored.now += 60
        if stored.rows:
            assert await one.admit(PLACE)
        await one.replied(PLACE, stored.now)
    assert opened == 1, "their tries count from then on"
    # Many are still the deployment's.
    for _ in range(SEVERAL * 2 - 1):
        assert (await fail(one, failure(fault))).waits_for is None
    assert (await fail(one, failure(fault))).waits_for == MODEL


async def test_clients_cannot_open_circuits_without_end() -> None:
    stored = Stored()
    one = circuits(stored)
    for number in range(MAX_OPEN + 50):
        deployment = f"local/{number}"
        error = failure(Fault.MODEL_UNKNOWN)
        await one.failed(deployment, deployment, uuid4(), error, began=stored.now, probing=False)
    assert len(stored.rows) == MAX_OPEN
