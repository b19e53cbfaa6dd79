"""Every flow that asks a model, with the asks that it yields. New flows join FLOWS."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

from service.domain.answers import whole
from service.domain.answers.browse.spec import ALL_ACTIONS, BrowseOption, BrowseRequest
from service.domain.answers.shaping import ShapeContent, shape
from service.domain.calls.ledger import CallScope
from service.domain.prism import asking as prism
from service.domain.prism.amendments import Amendment, Op, Rules
from service.domain.prism.memory import PrismMemory
from service.domain.prism.schemas.generation import generate
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.spec import Encoding, PrismSpec
from service.domain.prompting.flows import Flow, ModelReply, ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from service.domain.search.reranking import rerank
from service.domain.state import asking as state
from service.domain.state.compressing import compress_steps, compress_vectors
from service.domain.state.spec import StateSpec
from service.domain.state.triggers import SizedStep
from service.domain.state.vectors import StateVector, VectorSource
from service.domain.tree.spec import TreeSpec, WorkingMemory
from service.domain.tree.summarizing import compress, summarize
from service.domain.values.paths import Path
from tests.unit.answers.browse import support
from tests.unit.state.contexts import context, vector
from tests.unit.support.logged import logged
from tests.unit.tree.navigating import UP, Tree, down, run, says, scripted

SOURCE = "class Notes:\n    topics: dict[str, list[str]]\n"
KEY = b"a key that nobody outside knows"
SCOPE = CallScope(
    tenant_id=UUID(int=1), session_key=UUID(int=2), memory_id=UUID(int=3), occasion="o:1"
)


def spec(task: str = "Keep it.") -> PrismSpec:
    return PrismSpec(
        schema_source=SOURCE, task=task, question="Why?", chunk_tokens=100, fold_tokens=50
    )


def memories(encoding: Encoding = Encoding.AMENDMENTS) -> Iterator[PrismMemory]:
    """Yields a memory as it grows: from nothing, by three revisions, then folded."""
    memory = PrismMemory.create(parse_source(SOURCE), encoding=encoding)
    yield memory
    for number in range(1, 4):
        one = Amendment(path=Path(("topics", f"t{number}")), op=Op.ADD, value=["x"])
        memory = memory.apply(number, [one])
        yield memory
    yield memory.fold()


def asks_of(flow: Flow[Any], *replies: str) -> list[ModelRequest]:
    """Returns what a flow asks, given these replies."""
    asks = list(next(flow))
    for reply in replies:
        asks += flow.send([ModelReply(text=reply, model="m")])
    flow.close()
    return asks


def revise_asks(encoding: Encoding) -> list[ModelRequest]:
    return [
        asks_of(
            prism.revise(
                one,
                memory,
                [logged(1, f"text {number}")],
                marker_key=KEY,
                rules=Rules(),
            )
        )[0]
        for one in (spec(), spec("Other."))
        for number, memory in enumerate(memories(encoding))
    ]


def focused_asks() -> list[ModelRequest]:
    """Steps of a memory that grows, of which they are shown a part."""
    memory = PrismMemory.create(spec().schema())
    asks: list[ModelRequest] = []
    for number in range(1, 101):
        path = Path(("topics", f"topic {number}"))
        memory = memory.apply(number, [Amendment(path=path, op=Op.ADD, value=f"text {number}")])
        if number > 95:
            flow = prism.revise(
                spec(),
                memory,
                [logged(1, f"text {number}, of topic {number - 50}")],
                marker_key=KEY,
                rules=Rules(),
                focus_tokens=300,
            )
            asks += asks_of(flow)[:1]
    return asks


def consolidate_asks() -> list[ModelRequest]:
    return [
        asks_of(
            prism.consolidate(
                spec(),
                memory,
                marker_key=KEY,
                rules=Rules(),
                budget_tokens=9,
            )
        )[0]
        for memory in memories()
    ]


def answer_asks() -> list[ModelRequest]:
    return [
        asks_of(prism.answer(spec(), memory, query, marker_key=KEY))[0]
        for memory in memories()
        for query in ("Which?", "Who?")
    ]


def schema_asks() -> list[ModelRequest]:
    return [
        ask
        for domain in ("Letters.", "Logs.")
        for ask in asks_of(generate(domain, "Who?", marker_key=KEY), "no class", "class: no")
    ]


def summarize_asks() -> list[ModelRequest]:
    return [
        asks_of(
            summarize(
                text,
                spec=TreeSpec(summary_tokens=tokens),
                marker_key=KEY,
                window_tokens=32_768,
                count=estimate_tokens,
            )
        )[0]
        for tokens in (250, 100)
        for text in ("text 1", "text 2")
    ]


def compress_asks() -> list[ModelRequest]:
    return [
        asks_of(
            compress(
                summaries,
                spec=TreeSpec(summary_tokens=tokens),
                marker_key=KEY,
                window_tokens=32_768,
                count=estimate_tokens,
            )
        )[0]
        for tokens in (20, 16)
        for summaries in (["a " * 50, "b"], ["a " * 50, "c"])
    ]


def navigate_asks(*, beam: int = 1) -> list[ModelRequest]:
    """Asks one tree two questions that go the same way; one has options, one strays."""
    shape = (("alpha", "beta"), ("gamma", "delta"))
    memory = TreeSpec(working_memory_tokens=16)
    told = TreeSpec(working_memory=WorkingMemory.SUMMARIZED, working_memory_tokens=2)
    ways: list[tuple[TreeSpec, dict[str, Any], list[str]]] = [
        (memory, {"query": "Who?"}, [down(1), down(0), "hm", UP, down(1), says("Delta.")]),
        (memory, {"query": "What?", "options": ("x", "y")}, [down(1), down(0), says("(A)")]),
        (told, {"query": "Who?"}, [down(1), down(0), "in short", says("gamma")]),
        (memory, {"query": "Who?", "options": ("x", "y")}, ["hm", "hm", "hm", "Answer: y"]),
    ]
    if beam > 1:
        replies = [down(0, 1), down(0), down(1), says("one"), says("two"), "hm", "Answer: two"]
        ways = [(memory, {"query": "Who?", "beam": beam}, replies)]
    return [
        ask
        for spec, question, replies in ways
        for ask in run(Tree(shape), scripted(*replies), spec=spec, **question).asks
    ]


def growing_asks() -> list[ModelRequest]:
    """Returns the root of a tree that is not whole yet, as it grows."""
    return [
        run(Tree(("a", "b", "c", "d")[:size], stored=False), scripted("", "", "")).asks[0]
        for size in (2, 3, 4)
    ]


STATE: dict[str, Any] = {
    "marker_key": KEY,
    "count": estimate_tokens,
    "window_tokens": 8000,
    "cut": lambda text, tokens: tokens,
}


def compress_steps_asks() -> list[ModelRequest]:
    """Asks after nothing, a task prompt and a vector, each again where that is too long."""
    return [
        ask
        for spec in (
            StateSpec(state_tokens=32),
            StateSpec(state_tokens=32, task="Find it.", pinned=("a b", "c")),
        )
        for current in (spec.task, "It is known.")
        for texts in (["text 1"], ["text 1", "text 2"])
        for ask in asks_of(
            compress_steps(current, [step(text) for text in texts], spec=spec, **STATE),
            "too long " * 40,
        )
    ]


def compress_vectors_asks() -> list[ModelRequest]:
    return [
        ask
        for spec in (StateSpec(state_tokens=32), StateSpec(state_tokens=32, pinned=("a b", "c")))
        for above in ("", "It was known.")
        for texts in (["text 1", "text 2"], ["text 1", "text 3"])
        for ask in asks_of(
            compress_vectors(
                above,
                [made(number, text) for number, text in enumerate(texts, 1)],
                spec=spec,
                **STATE,
            ),
            "too long " * 40,
        )
    ]


def step(text: str) -> SizedStep:
    return SizedStep.of(logged(1, text))


def made(number: int, text: str) -> StateVector:
    return StateVector(
        revision=number,
        level=1,
        text=text,
        tokens=2,
        made=VectorSource.MODEL,
        after_position=10 * (number - 1),
        from_position=10 * (number - 1),
        to_position=10 * number,
    )


def state_answer_asks() -> list[ModelRequest]:
    """Returns a working context as it grows, and after its next compression."""
    above = vector(3, "Ann left.", end=20, level=2, children=(1, 2))
    stacks = ([vector(0, "Watch.")], [above], [above, vector(4, "Ben came.", begin=20, end=30)])
    return [
        asks_of(
            state.answer(
                context(stack, ["It rained.", "It stopped."][:recent]),
                query,
                spec=StateSpec(task="Watch."),
                marker_key=KEY,
                window_tokens=32_768,
                count=estimate_tokens,
            ),
            "",
        )[0]
        for stack in stacks
        for recent in range(3)
        for query in ("Which?", "Who?")
    ]


def browse_asks() -> list[ModelRequest]:
    """Returns two questions on one log, read in each way, with what is asked again on the way."""
    log = support.Log(("Ann came. " * 20, "Ben left. " * 20, "Cid slept."), best=(2, 1))
    note, ends = support.does("append", "Ann. " * 60), "Text: Ann"
    ways: list[tuple[BrowseRequest, list[str]]] = [
        (support.request(BrowseOption.DYNAMIC, ALL_ACTIONS), ["hm", "Query: Tell.", note, note]),
        (support.request(BrowseOption.CARRY), [support.says("Ann.")] * 3),
        (support.request(BrowseOption.RANK), []),
        (support.request(BrowseOption.INDEPENDENT, window_tokens=600), [note] * 3 + [ends] * 2),
        (support.request(BrowseOption.SCAN), [support.NULL]),
    ]
    return [
        ask
        for asked, replies in ways
        for query in ("Who?", "What?")
        for ask in support.run(
            log,
            support.scripted(*replies, *[ends] * 9),
            asked,
            query=query,
        ).asks
    ]


def whole_asks() -> list[ModelRequest]:
    """Returns a log as it grows, over the border of a block."""
    chunks = [(number, f"Day {number}.") for number in range(1, 35)]
    return [
        asks_of(
            whole.answer(
                chunks[:upto],
                query,
                marker_key=KEY,
                window_tokens=32_768,
                count=estimate_tokens,
            ),
            "",
        )[0]
        for upto in (1, 16, 20, 34)
        for query in ("Which?", "Who?")
    ]


def shape_asks() -> list[ModelRequest]:
    return [
        ask
        for answer in ("In box 7.", "Nowhere.")
        for kind in ("string", "object")
        for ask in asks_of(
            shape(
                ShapeContent(
                    query="Where?", answer=answer, excerpts=("To box 7.",), schema={"type": kind}
                ),
                check=lambda _: "it does not fit",
                marker_key=KEY,
                window_tokens=32_768,
                count=estimate_tokens,
            ),
            "7",
        )
    ]


def rerank_asks() -> list[ModelRequest]:
    return [
        ask
        for texts in (("Day 1.", "Day 2."), ("Day 1.", "Day 2.", "Day 3."))
        for ask in asks_of(
            rerank(
                "Which?",
                texts,
                marker_key=KEY,
                window_tokens=4_096,
                count=estimate_tokens,
            ),
            "no order",
        )
    ]


FLOWS: dict[str, Callable[[], list[ModelRequest]]] = {
    "revise": lambda: revise_asks(Encoding.AMENDMENTS),
    "revise, in place": lambda: revise_asks(Encoding.IN_PLACE),
    "revise, focused": focused_asks,
    "consolidate": consolidate_asks,
    "answer": answer_asks,
    "schema": schema_asks,
    "summarize": summarize_asks,
    "compress": compress_asks,
    "navigate": navigate_asks,
    "navigate, several at once": lambda: navigate_asks(beam=2),
    "navigate, growing": growing_asks,
    "state, steps": compress_steps_asks,
    "state, vectors": compress_vectors_asks,
    "answer, state": state_answer_asks,
    "browse": browse_asks,
    "answer, whole": whole_asks,
    "answer, shaped": shape_asks,
    "rerank": rerank_asks,
}
