"""Every flow that asks a model, with a small input, a model's good replies, and a judgement of
each result."""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from evaluation.baselines.reading import Baseline, Window, carry, read_full
from evaluation.baselines.texts import Text
from service.domain.answers import whole
from service.domain.answers.browse.flow import browse
from service.domain.answers.browse.prompts import BrowsePrompts
from service.domain.answers.browse.spec import BrowseAction, BrowseOption
from service.domain.answers.browse.understanding import understand
from service.domain.answers.shaping import ShapeContent, shape
from service.domain.answers.trajectory import Action, Event, EventKind, NoAnswer
from service.domain.prism import asking as prism
from service.domain.prism.amendments import Amendment, Op, Rules
from service.domain.prism.memory import PrismMemory
from service.domain.prism.schemas.generation import generate
from service.domain.prism.schemas.source import parse_source
from service.domain.prism.spec import PrismSpec
from service.domain.prompting.flows import ModelRequest
from service.domain.prompting.tokens import estimate_tokens
from service.domain.search.reranking import rerank
from service.domain.state import asking as state
from service.domain.state.compressing import compress_steps, compress_vectors
from service.domain.state.spec import StateSpec
from service.domain.state.vectors import VectorSource as MadeVector
from service.domain.tree.nodes import SummarySource
from service.domain.tree.spec import TreeSpec, WorkingMemory
from service.domain.tree.summarizing import compress, summarize
from service.domain.values.paths import Path
from tests.support.contents import content_of
from tests.unit.answers.browse import support
from tests.unit.state.contexts import context, step, vector
from tests.unit.support.logged import logged
from tests.unit.tree.navigating import Shape, Tree
from tests.unit.tree.navigating import start as navigation

Flow = Generator[Sequence[Any], Sequence[Any], Any]
KEY = b"a key that nobody outside knows"
WINDOW = 32_768


class Came(StrEnum):
    """What the caller of a flow gets."""

    KEPT = "kept"
    #: A text that was cut off, and shows it.
    MARKED = "cut, marked"
    #: The beginning of a text that was cut off, which does not show it.
    BEGUN = "begun"
    #: It raises that none of the replies was of use.
    FAILED = "fails"
    #: It raises that the text was refused.
    REFUSED = "refused"
    #: There is no answer, since no reply could be read.
    UNREADABLE = "unreadable"
    #: The rest is read without the text that could not be.
    PASSED = "passed"
    #: It continues without a model: as is usual, by words, or with what there was.
    WITHOUT = "without"
    #: It ends with the error of the call.
    RAISED = "raised"
    #: What no flow may return: a part that is taken for the whole.
    TORN = "torn"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A flow, and the prompt of it that meets the ends."""

    #: What is asked for, as documents say it.
    title: str
    #: The name of the prompt's template, without its version.
    template: str
    start: Callable[[], Flow]
    #: A reply of use to each prompt of the flow.
    good: Callable[[ModelRequest], str]
    #: Judges a result and its events.
    came: Callable[[Any, Sequence[Event]], Came]
    look: Callable[[Any], Any] = field(default=lambda lookup: None)


def _either(is_kept: bool, other: Came) -> Came:
    return Came.KEPT if is_kept else other


# PRISM

SOURCE = "class Notes:\n    topics: dict[str, list[str]]\n"
SPEC = PrismSpec(schema_source=SOURCE, task="Keep what is said.", question="When is it open?")
FACT = "closed on Mondays, but for May"


def _memory() -> PrismMemory:
    one = Amendment(path=Path(("topics", "museum")), op=Op.ADD, value=[FACT])
    return PrismMemory.create(parse_source(SOURCE)).apply(1, [one])


def _changes(*changes: tuple[str, str, str]) -> str:
    named = [{"op": op, "path": path, "value": value} for op, path, value in changes]
    return json.dumps({"changes": named})


def _revise_good(ask: ModelRequest) -> str:
    numbers = [number for number, text in READ.items() if text in content_of(ask).texts]
    return _changes(*(("add", f"$.'topics'.'t{number}'", '["noted"]') for number in numbers))


def _topics(result: Any) -> list[str]:
    return [str(one.path.tokens[1]) for one in result.amendments]


def _answer_came(text: str) -> Callable[[Any, Sequence[Event]], Came]:
    def came(result: Any, events: Sequence[Event]) -> Came:
        if result.text == text:
            return Came.KEPT
        if result.no_answer is NoAnswer.UNREADABLE:
            return Came.UNREADABLE
        assert text.startswith(result.text.rstrip(" …"))
        return Came.MARKED if result.text.endswith("…") else Came.TORN

    return came


# Trees and states

#: Of two sentences: what is cut ends with the first.
SUMMARY = "The harbour museum is a ship. It was built in Bergen long ago, and sails no more."
TREE: dict[str, Any] = {"marker_key": KEY, "window_tokens": WINDOW, "count": estimate_tokens}


def _made_came(result: Any, events: Sequence[Event]) -> Came:
    if result.made in (SummarySource.CUT, MadeVector.CUT):
        assert SUMMARY.startswith(result.text.rstrip(".… "))
        return Came.MARKED
    assert result.text == SUMMARY
    return Came.KEPT


def _state_answer() -> Flow:
    held = context([vector(1, "Ann left.", end=10)], ["It rained.", "It stopped."])
    return state.answer(held, "Who left?", spec=StateSpec(task="Watch."), **TREE)


def _navigation(
    shape: Shape, *, about: str = "about", **question: Any
) -> tuple[
    Callable[[], Flow],
    Callable[[Any], Any],
]:
    tree = Tree(shape, about=about)
    return (lambda: navigation(tree, **question)), tree.look


def _navigate_good(ask: ModelRequest) -> str:
    """Down to both, an answer at each, and the second of them."""
    name = ask.template.partition("/")[0]
    if name == "tree.triage":
        return json.dumps({"notes": "Both fit.", "action": ["0", "1"]})
    if name == "tree.leaf":
        text = "Alma left." if "alpha" in ask.text else "Ben left."
        return json.dumps({"notes": "It says so.", "action": "-2", "answer": text})
    return json.dumps({"notes": "The later one.", "answer": "Ben left.", "sources": ["1"]})


def _navigated(text: str) -> Callable[[Any, Sequence[Event]], Came]:
    def came(result: Any, events: Sequence[Event]) -> Came:
        if result.no_answer is None:
            assert result.text == text
            return Came.KEPT
        assert result.no_answer is NoAnswer.UNREADABLE
        return Came.UNREADABLE

    return came


#: The chunks of a step, by their positions.
READ = {3: "It opens at nine.", 4: "On Sundays at ten."}
#: Shortened, a summary is this.
MEMORY = "All in short. The rest and more."


def _remember_good(ask: ModelRequest) -> str:
    name = ask.template.partition("/")[0]
    if name == "tree.triage":
        return json.dumps({"notes": "It fits.", "action": ["0"]})
    if name == "tree.leaf":
        return json.dumps({"notes": "It says so.", "action": "-2", "answer": "Ben left."})
    return MEMORY


def _remembered(result: Any, events: Sequence[Event]) -> Came:
    assert result.text == "Ben left.", "the question is answered all the same"
    (told,) = (event for event in events if event.kind is EventKind.WORKING_MEMORY)
    if told.action is Action.INVALID:
        return Came.WITHOUT
    if told.text == MEMORY:
        return Came.KEPT
    assert told.text == "All in short. …", "up to the end of a sentence"
    return Came.MARKED


def _tree_guess_good(ask: ModelRequest) -> str:
    if ask.template.startswith("tree.guess"):
        return json.dumps({"notes": "It may be.", "answer": "(B) yonder"})
    return json.dumps({"notes": "Not here.", "action": ["-1"]})


def _tree_guessed(result: Any, events: Sequence[Event]) -> Came:
    assert result.guessed
    # By its words it is the first.
    return _either(result.text == "yonder", Came.WITHOUT)


# Browsing

LOG = support.Log(("Ann came. It opened in 1887.", "Ben left. It closed in 1903."), best=(1, 2))
NOTE = "Much was said of it. " * 12
OPENED, CLOSED = "It opened in 1887, they say.", "It closed in 1903, they say."


def _browse(
    option: BrowseOption, log: support.Log = LOG, **more: Any
) -> tuple[
    Callable[[], Flow],
    Callable[[Any], Any],
]:
    asked = support.request(option, **more)
    held = log.frames()

    def begin() -> Flow:
        return browse(
            "When did it open?",
            held,
            request=asked,
            marker_key=KEY,
            window_tokens=WINDOW,
            count=estimate_tokens,
        )

    return begin, lambda lookup: log.look(lookup, held)


def _said(text: str, **more: Any) -> str:
    return json.dumps({"action": "answer", "text": text, "quotes": [], "sources": [], **more})


def _browse_good(ask: ModelRequest) -> str:
    if ask.template.startswith("browse.piece"):
        return _said(OPENED if "1887" in ask.text else CLOSED)
    return _said(OPENED)


def _noting(ask: ModelRequest) -> str:
    """Returns a long note of each piece."""
    if ask.template.startswith("browse.piece"):
        return _said(NOTE, action="append")
    if ask.template.startswith("browse.condense"):
        return _said("In short, it opened.")
    return _said(OPENED)


def _silent(ask: ModelRequest) -> str:
    """Notes nothing of any piece, and chooses an option."""
    if ask.template.startswith("browse.guess"):
        return json.dumps({"option": "B"})
    return _said("", action="append")


def _browsed(result: Any, events: Sequence[Event]) -> Came:
    if result.text == OPENED:
        return Came.KEPT
    if result.text == CLOSED:
        assert result.passed == 1, "what was left out is counted"
        return Came.PASSED
    assert result.no_answer is NoAnswer.UNREADABLE
    assert result.cause or not result.passed
    return Came.UNREADABLE


def _condensed(result: Any, events: Sequence[Event]) -> Came:
    assert result.text == OPENED
    made = [
        event
        for event in events
        if event.kind is EventKind.AGGREGATION and event.action is not Action.ANSWER
    ]
    return _either(made[-1].text == "In short, it opened.", Came.WITHOUT)


def _guessed(result: Any, events: Sequence[Event]) -> Came:
    assert result.guessed
    return _either(result.text == "yonder", Came.WITHOUT)


def _understanding() -> Flow:
    allowed = frozenset({BrowseOption.RANK, BrowseOption.INDEPENDENT})
    return understand(BrowsePrompts(query="When did it open?", **TREE), allowed)


# Others

SHAPED = {"city": "Bergen", "year": 1932}
SHAPE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "year": {"type": "integer"}},
    "required": ["city", "year"],
    "additionalProperties": False,
}


def _shape() -> Flow:
    content = ShapeContent(
        query="Where?", answer="In Bergen, in 1932.", excerpts=(), schema=SHAPE_SCHEMA
    )

    def check(value: Any) -> str:
        return "" if value == SHAPED else "it does not fit"

    return shape(content, check=check, **TREE)


def _shaped(result: Any, events: Sequence[Event]) -> Came:
    if result.fits:
        assert result.value == SHAPED
        return Came.KEPT
    last = result.tries[-1].reply
    return Came.REFUSED if last.end.is_refused else Came.UNREADABLE


GENERATED = (
    'class Letters:\n    """What they say."""\n    people: dict[str, str]\n    places: list[str]\n'
)
BEN = "It was Ben who left the house."
BASELINE = Window(tokens=4096, count=estimate_tokens, marker_key=KEY)
#: Longer than a part that recurrence reads at once.
LONG = Text(["The ferry left at nine. " * 600])


def _baseline_came(text: str, good: str) -> Came:
    if text == good:
        return Came.KEPT
    if not text:
        return Came.WITHOUT
    return Came.BEGUN if good.startswith(text[:8]) else Came.TORN


def _cases() -> dict[str, Case]:
    leaf, look_leaf = _navigation("alpha")
    tree, look_tree = _navigation(("alpha", "beta"))
    beam, look_beam = _navigation(("alpha", "beta"), beam=2)
    told = TreeSpec(working_memory=WorkingMemory.SUMMARIZED, working_memory_tokens=12)
    long = "much was said about it here, and more still, about"
    remember, look_remember = _navigation(
        (("alpha", "beta"), ("gamma", "delta")), about=long, spec=told
    )
    options = ("about here", "yonder")
    guess, look_guess = _navigation(("alpha", "beta"), options=options)
    scan, look_scan = _browse(BrowseOption.SCAN)
    carried, look_carried = _browse(BrowseOption.CARRY)
    ranked, look_ranked = _browse(BrowseOption.RANK)
    many = support.Log(("Ann came. " * 20,) * 3)
    noted, look_noted = _browse(BrowseOption.INDEPENDENT, many, window_tokens=600)
    unknown, look_unknown = _browse(
        BrowseOption.INDEPENDENT,
        options=("it opened here", "yonder"),
        actions=(BrowseAction.MOVE, BrowseAction.APPEND, BrowseAction.ANSWER),
    )
    paths = "\n[PATHS]\n$.'topics'.'museum'[0]"
    return {
        "prism.revise": Case(
            title="a step of a PRISM memory",
            template="prism.revise",
            start=lambda: prism.revise_in_parts(
                SPEC,
                _memory(),
                [[logged(number, text) for number, text in READ.items()]],
                number=2,
                marker_key=KEY,
                rules=Rules(),
                output_tokens=512,
                most_tokens=1024,
            ),
            good=_revise_good,
            came=lambda result, _: _either(_topics(result) == ["t3", "t4"], Came.FAILED),
        ),
        "prism.revise-focused": Case(
            title="the same where the memory is too large to be shown whole",
            template="prism.revise-focused",
            start=lambda: prism.revise_in_parts(
                SPEC,
                _memory(),
                [[logged(number, text) for number, text in READ.items()]],
                number=2,
                marker_key=KEY,
                rules=Rules(),
                output_tokens=512,
                most_tokens=1024,
                focus=lambda _: 300,
            ),
            good=_revise_good,
            came=lambda result, _: _either(_topics(result) == ["t3", "t4"], Came.FAILED),
        ),
        "prism.consolidate": Case(
            title="tidying a PRISM memory that is too long",
            template="prism.consolidate",
            start=lambda: prism.consolidate(
                SPEC,
                _memory(),
                marker_key=KEY,
                rules=Rules(),
                budget_tokens=9,
                output_tokens=512,
                most_tokens=1024,
            ),
            good=lambda _: _changes(("update", "$.'topics'.'museum'[0]", "closed on Mondays")),
            came=lambda result, _: _either(_topics(result) == ["museum"], Came.FAILED),
        ),
        "prism.answer": Case(
            title="an answer from a PRISM memory",
            template="prism.answer",
            start=lambda: prism.answer(SPEC, _memory(), "When is it closed?", marker_key=KEY),
            good=lambda _: f"[ANSWER]\nThe museum is {FACT}.{paths}",
            came=_answer_came(f"The museum is {FACT}."),
        ),
        "whole.answer": Case(
            title="an answer from the whole log",
            template="whole.answer",
            start=lambda: whole.answer([(1, "Day 1."), (2, "Day 2.")], "Which?", **TREE),
            good=lambda _: '[ANSWER]\nDay two, as the log says.\n[QUOTES]\n2: "Day 2."',
            came=_answer_came("Day two, as the log says."),
        ),
        "state.answer": Case(
            title="an answer from a state memory",
            template="state.answer",
            start=_state_answer,
            good=lambda _: "[ANSWER]\nIt was Ann who left it.\n[STEPS]\n11",
            came=_answer_came("It was Ann who left it."),
        ),
        "answer.shape": Case(
            title="an answer as JSON",
            template="answer.shape",
            start=_shape,
            good=lambda _: json.dumps(SHAPED),
            came=_shaped,
        ),
        "schema.generate": Case(
            title="a schema for a memory",
            template="schema.generate",
            start=lambda: generate("Letters.", "Who?", marker_key=KEY),
            good=lambda _: GENERATED,
            came=lambda result, _: _either("places: list[str]" in result.source, Came.FAILED),
        ),
        "tree.summarize": Case(
            title="a summary of a tree's leaf",
            template="tree.summarize",
            start=lambda: summarize("A long text.", spec=TreeSpec(summary_tokens=100), **TREE),
            good=lambda _: SUMMARY,
            came=_made_came,
        ),
        "tree.compress": Case(
            title="a summary of summaries",
            template="tree.compress",
            start=lambda: compress(["a " * 300, "b"], spec=TreeSpec(summary_tokens=100), **TREE),
            good=lambda _: SUMMARY,
            came=_made_came,
        ),
        "tree.triage": Case(
            title="a choice among the parts of a tree",
            template="tree.triage",
            start=tree,
            look=look_tree,
            good=lambda ask: (
                json.dumps({"notes": "It fits.", "action": ["1"]})
                if ask.template.startswith("tree.triage")
                else _navigate_good(ask)
            ),
            came=_navigated("Ben left."),
        ),
        "tree.leaf": Case(
            title="a leaf of a tree",
            template="tree.leaf",
            start=leaf,
            look=look_leaf,
            good=_navigate_good,
            came=_navigated("Alma left."),
        ),
        "tree.merge": Case(
            title="a choice among the answers of leaves",
            template="tree.merge",
            start=beam,
            look=look_beam,
            good=_navigate_good,
            came=_navigated("Ben left."),
        ),
        "tree.remember": Case(
            title="what was read so far, shortened",
            template="tree.remember",
            start=remember,
            look=look_remember,
            good=_remember_good,
            came=_remembered,
        ),
        "tree.guess": Case(
            title="a guess among options, from a tree",
            template="tree.guess",
            start=guess,
            look=look_guess,
            good=_tree_guess_good,
            came=_tree_guessed,
        ),
        "state.compress": Case(
            title="a state vector of steps",
            template="state.compress",
            start=lambda: compress_steps(
                "Watch.",
                [step(1, "text 1"), step(2, "text 2")],
                spec=StateSpec(task="Watch.", state_tokens=64),
                cut=lambda text, tokens: tokens,
                **TREE,
            ),
            good=lambda _: SUMMARY,
            came=_made_came,
        ),
        "state.episode": Case(
            title="a state vector of vectors",
            template="state.episode",
            start=lambda: compress_vectors(
                "",
                [vector(1, "Ann left.", end=10), vector(2, "Ben came.", begin=10, end=20)],
                spec=StateSpec(state_tokens=64),
                cut=lambda text, tokens: tokens,
                **TREE,
            ),
            good=lambda _: SUMMARY,
            came=_made_came,
        ),
        "browse.understand": Case(
            title="what a question wants",
            template="browse.understand",
            start=_understanding,
            good=lambda _: json.dumps(
                {
                    "subject": "overview",
                    "option": "independent",
                    "order": "forward",
                    "query": "When it opened.",
                }
            ),
            came=lambda result, _: _either(
                result.result.option is BrowseOption.INDEPENDENT, Came.WITHOUT
            ),
        ),
        "browse.piece": Case(
            title="a piece of the log",
            template="browse.piece",
            start=scan,
            look=look_scan,
            good=_browse_good,
            came=_browsed,
        ),
        "browse.close": Case(
            title="an answer from notes",
            template="browse.close",
            start=carried,
            look=look_carried,
            good=_noting,
            came=_browsed,
        ),
        "browse.read": Case(
            title="an answer from the best pieces",
            template="browse.read",
            start=ranked,
            look=look_ranked,
            good=_browse_good,
            came=_browsed,
        ),
        "browse.condense": Case(
            title="one note of several",
            template="browse.condense",
            start=noted,
            look=look_noted,
            good=_noting,
            came=_condensed,
        ),
        "browse.guess": Case(
            title="a guess among options, from the log",
            template="browse.guess",
            start=unknown,
            look=look_unknown,
            good=_silent,
            came=_guessed,
        ),
        "search.rerank": Case(
            title="the order of what search found",
            template="search.rerank",
            start=lambda: rerank("Which?", ("Day 1.", "Day 2.", "Day 3."), **TREE),
            good=lambda _: json.dumps({"order": [3, 1, 2]}),
            came=lambda result, _: _either(list(result) == [2, 0, 1], Came.FAILED),
        ),
        "baseline.read": Case(
            title="evaluation: an answer of a baseline",
            template="baseline.read",
            start=lambda: read_full(
                Baseline.FULL_LEFT, Text(["Ben left."]), "Who left?", (), BASELINE
            ),
            good=lambda _: BEN,
            came=lambda result, _: _baseline_came(result.text, BEN),
        ),
        "baseline.carry": Case(
            title="evaluation: a summary of a baseline",
            template="baseline.carry",
            start=lambda: carry(LONG, BASELINE),
            good=lambda _: SUMMARY,
            came=lambda result, _: _baseline_came(result.summary, SUMMARY),
        ),
    }


CASES: Mapping[str, Case] = _cases()
