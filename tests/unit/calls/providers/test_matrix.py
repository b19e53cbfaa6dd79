"""Every flow with every provider and every end: what users get, and how many calls it takes.

The flow is driven with our transport against the emulated provider, without a database. Its
prompt meets the end once, after which all is well, and again and again. What the transport makes
of each end is said in `test_emulators`, and what should come of that in `matrix`.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from service.domain.answers.trajectory import Emit, Event
from service.domain.prism.schemas.generation import NoSchema
from service.domain.prompting.asking import FAULTS, THEN, NoUse, Then
from service.domain.prompting.ends import End
from service.domain.prompting.faults import Fault
from service.domain.prompting.flows import ModelReply, ModelRequest
from service.domain.search.reranking import NoOrder
from service.llm.gateway.driver import drive
from service.llm.providers.failures import ModelFailure
from service.llm.providers.forms import Refusals
from service.llm.providers.plans import CallPlan
from service.llm.providers.prices import Prices
from service.llm.providers.requests import Requests
from service.llm.providers.transport import Completion, LitellmTransport
from service.settings.profiles import SchemaMode
from tests import ROOT
from tests.providers.scenarios import Scenario, Turn
from tests.providers.server import PROVIDERS, Emulator, Emulators
from tests.support.contents import ReviseContent, content_of
from tests.unit.answers.flow_asks import FLOWS
from tests.unit.calls.providers.flows import CASES, Came, Case
from tests.unit.calls.providers.matrix import COLUMNS, ROWS, expected, flows_table, providers_table
from tests.unit.calls.providers.test_emulators import (
    MISREAD,
    STREAMED,
    WHOLE,
    right,
    turns,
)

PAGE = ROOT / "docs/reference/ends.md"
#: Which flows meet which providers: all meet all in `make prove LONG=1`, else each flow meets
#: every third provider and each provider every third flow.
MET = [
    (flow, name)
    for row, flow in enumerate(CASES)
    for column, name in enumerate(PROVIDERS)
    if (row + column) % 3 == 0 or "PALIMPSEST_TEST_LONG" in os.environ
]
OK = Turn()


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A call, and what came of it."""

    ask: ModelRequest
    came: Completion | ModelFailure
    #: As it was sent.
    prompt: str
    body: str
    requests: int
    is_streamed: bool

    @property
    def read(self) -> End | Fault:
        """Returns how the transport reads the end."""
        return self.came.end if isinstance(self.came, Completion) else self.came.fault


@dataclass(kw_only=True)
class Desk:
    """One provider, as flows ask it. What was asked before gets what it got."""

    emulator: Emulator
    transport: LitellmTransport
    requests: Requests
    known: dict[object, Exchange] = field(default_factory=dict)

    async def exchange(
        self, ask: ModelRequest, good: str, turn: Turn, *, how: str, stays: bool
    ) -> Exchange:
        # But for a form, what is said does not depend on what was before. Nor does an end, once
        # it was met, depend on the prompt.
        stays = stays and turn.scenario is Scenario.SCHEMA_400
        prompt = (ask.text, ask.max_output_tokens) if turn == OK else None
        key = (prompt, good, turn, how, stays)
        if key not in self.known:
            self.known[key] = await self._asked(ask, good, turn, how=how, stays=stays)
        return self.known[key]

    async def _asked(
        self, ask: ModelRequest, good: str, turn: Turn, *, how: str, stays: bool
    ) -> Exchange:
        one, bad = self.emulator, replace(turn, text=good)
        one.seen.clear()
        one.script = [bad]
        one.answer = lambda prompt: bad if stays else good
        end = one.endpoint()
        listens = how == STREAMED and ask.find_text is not None
        plan = CallPlan(deployment=end.deployment, on_text=_ignored if listens else None)
        # Forms that were refused are remembered for an hour.
        vars(self.transport)["_refusals"] = Refusals()
        came: Completion | ModelFailure
        try:
            came = await self.transport.complete(ask, end.model, plan)
        except ModelFailure as failure:
            came = failure
        assert one.refusals == [], "our requests are right"
        assert one.script == []
        last = one.seen[-1]
        return Exchange(
            ask=ask,
            came=came,
            prompt=last.prompt,
            body=json.dumps(last.request.body),
            requests=len(one.seen),
            is_streamed=one.provider.is_streamed(last.request),
        )

    def form(self, ask: ModelRequest) -> SchemaMode:
        return self.requests.shape(ask, self.emulator.endpoint().model).form

    def bound(self, ask: ModelRequest) -> int:
        return self.transport.requests.reply_tokens(ask, self.emulator.endpoint().model)


def _ignored(text: str) -> None:
    """Ignores a reply that is being written."""


@dataclass(kw_only=True)
class Run:
    """A flow that was driven to its end."""

    came: Came
    asks: list[ModelRequest]
    exchanges: list[Exchange]


async def run(case: Case, desk: Desk, turn: Turn, *, how: str, bad: int | None) -> Run:
    """Drives a flow whose prompt meets the end at its first calls, or at all of them."""
    events: list[Event] = []
    asks: list[ModelRequest] = []
    exchanges: list[Exchange] = []

    async def call(ask: object) -> object:
        if isinstance(ask, Emit):
            events.append(ask.event)
            return None
        if not isinstance(ask, ModelRequest):
            return case.look(ask)
        good = case.good(ask)
        if ask.template.partition("/")[0] != case.template:
            return ModelReply(text=good, model="test/model")
        is_bad = bad is None or len(asks) < bad
        asks.append(ask)
        made = await desk.exchange(ask, good, turn if is_bad else OK, how=how, stays=bad is None)
        exchanges.append(made)
        if isinstance(made.came, ModelFailure):
            raise made.came
        return _reply(made.came)

    try:
        came = case.came(await drive(case.start(), call, limit=1), events)
    except ModelFailure:
        came = Came.RAISED
    except (NoUse, NoSchema, NoOrder) as error:
        is_refused = getattr(error, "end", None) in (End.REFUSAL, End.FILTER)
        came = Came.REFUSED if is_refused else Came.FAILED
    return Run(came=came, asks=asks, exchanges=exchanges)


def _reply(done: Completion) -> ModelReply:
    return ModelReply(
        text=done.text,
        model=done.model,
        input_tokens=done.input_tokens,
        cached_tokens=done.cached_tokens,
        output_tokens=done.output_tokens,
        reasoning_tokens=done.reasoning_tokens,
        end=done.end,
        said=done.said,
    )


def is_well(name: str, turn: Turn) -> bool:
    """Returns whether the model says all that it wants to say."""
    # Ollama removes the middle of a prompt that is too long, and does not report it.
    well = (Scenario.OK, Scenario.THINKING)
    return turn.scenario in well or (name, turn.scenario) == ("ollama", Scenario.TOO_LONG)


def wrong(name: str, flow: str, turn: Turn, got: Run, desk: Desk, *, stays: bool) -> Iterator[str]:
    """Yields what is not as it should be."""
    first, ask = got.exchanges[0], got.asks[0]
    how = STREAMED if first.is_streamed else WHOLE
    falls_back = turn.scenario is Scenario.SCHEMA_400 and desk.form(ask) is not SchemaMode.NONE
    key = (name, turn.native or turn.scenario, how)
    read = MISREAD.get(key, right(name, turn, how))
    if falls_back and not stays:
        read = End.COMPLETE
    if first.read is not read:
        yield f"it is read as {first.read!r}, not {read!r}"
    # Without a schema, and at last without JSON mode.
    if first.requests not in ((2, 3) if falls_back and stays else (1 + falls_back,)):
        yield f"{first.requests} requests for one call"
    is_last_well = is_well(name, turn) or got.exchanges[-1].read is End.COMPLETE
    if got.came is Came.KEPT and not is_last_well:
        yield f"taken for complete: {got.exchanges[-1].read!r}"
    want = _expected(flow, first.read, stays=stays)
    is_misread = read is End.COMPLETE and MISREAD.get(key) is End.COMPLETE
    if not is_misread and (got.came, len(got.asks)) != want:
        yield f"{got.came!r} in {len(got.asks)} calls, not {want[0]!r} in {want[1]}"
    yield from _wrong_retries(got, desk)


def _expected(flow: str, read: End | Fault, *, stays: bool) -> tuple[Came, int]:
    if read is End.COMPLETE:
        return Came.KEPT, 1
    if isinstance(read, Fault):
        return Came.RAISED, 1
    want = expected(flow, read)
    return (want.always, want.calls) if stays else (want.once, want.once_calls)


def _wrong_retries(got: Run, desk: Desk) -> Iterator[str]:
    """Prompts that are asked again say what was wrong, and have more room where that was it."""
    for at, ask in enumerate(got.asks):
        made = got.exchanges[at]
        if made.ask.segments[-1].text not in made.prompt:
            yield "the prompt is not sent whole"
        if f": {desk.bound(made.ask)}" not in made.body:
            yield "the bound is not sent"
        first = next((one for one in got.asks[:at] if ask.text.startswith(one.text)), None)
        before = got.exchanges[at - 1]
        if first is None or not isinstance(before.came, Completion):
            continue
        end, behind = before.came.end, ask.text[len(first.text) :]
        # A model that is shown a beginning is asked to do something with it.
        is_shown = end is End.LENGTH and before.came.text[:8] in behind
        if not is_shown and FAULTS.get(end, "") not in behind:
            yield f"it is not said that {FAULTS[end]}"
        if THEN[end] is Then.MORE_ROOM and ask.max_output_tokens <= first.max_output_tokens:
            yield "it has no more room"


@pytest.fixture(scope="module")
def desks(servers: Emulators) -> dict[str, Desk]:
    """Returns one transport for each provider: litellm keeps every router."""
    found = {}
    for name, one in servers.items():
        config = one.endpoint().config()
        found[name] = Desk(
            emulator=one,
            transport=LitellmTransport(config),
            requests=Requests(config, Prices(config)),
        )
    return found


@pytest.mark.prove
@pytest.mark.parametrize(("flow", "name"), MET)
async def test_every_end(desks: dict[str, Desk], flow: str, name: str) -> None:
    case, desk = CASES[flow], replace(desks[name], known={})
    told = await run(case, desk, OK, how=STREAMED, bad=None)
    is_streamed = told.exchanges[0].is_streamed
    found = []
    for how in (WHOLE, STREAMED) if is_streamed else (WHOLE,):
        for turn in turns(name):
            for bad in (1, None):
                got = await run(case, desk, turn, how=how, bad=bad)
                what = f"{turn.native or turn.scenario.value}, {how}, {'once' if bad else 'always'}"
                faults = wrong(name, flow, turn, got, desk, stays=bad is None)
                found += [f"{what}: {one}" for one in faults]
    assert found == []


@pytest.mark.parametrize(
    "name", [name for name in PROVIDERS if Scenario.LENGTH in PROVIDERS[name]().scenarios]
)
async def test_a_step_that_stays_too_long_is_read_in_halves(
    desks: dict[str, Desk], name: str
) -> None:
    desk = replace(desks[name], known={})
    got = await run(CASES["prism.revise"], desk, Turn(scenario=Scenario.LENGTH), how=WHOLE, bad=2)
    assert got.came is Came.KEPT, "changes from all of the text"
    shown = [content_of(ask) for ask in got.asks if isinstance(content_of(ask), ReviseContent)]
    both = ("It opens at nine.", "On Sundays at ten.")
    assert [one.texts for one in shown] == [both, both, both[:1], both[1:]]


def test_every_flow_is_here() -> None:
    known = {case.template for case in CASES.values()}
    asked = {ask.template.partition("/")[0] for asks in FLOWS.values() for ask in asks()}
    assert known >= asked
    assert set(ROWS) == set(CASES)


def test_every_end_has_its_column() -> None:
    columns = [end for ends in COLUMNS.values() for end in ends]
    assert sorted(columns) == sorted(set(End) - {End.COMPLETE})


@pytest.mark.parametrize(
    ("name", "table"), [("flows", flows_table), ("providers", providers_table)]
)
def test_the_page_shows_it(name: str, table: Callable[[], Iterator[str]]) -> None:
    """PALIMPSEST_TEST_UPDATE=1 writes the tables anew."""
    begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
    before, _, rest = PAGE.read_text().partition(begin)
    held, found, behind = rest.partition(end)
    assert found, "the marks stand in the page"
    measured = "\n".join(table())
    if os.environ.get("PALIMPSEST_TEST_UPDATE"):
        PAGE.write_text(before + begin + measured + found + behind)
        held = measured
    assert held == measured
