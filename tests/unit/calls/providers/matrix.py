"""What every flow should return at every end of a reply, and the table of it in the docs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from service.domain.prompting.ends import End
from service.domain.prompting.faults import Fault
from tests.providers.scenarios import Scenario, Turn
from tests.providers.server import PROVIDERS
from tests.unit.calls.providers.flows import CASES, Came
from tests.unit.calls.providers.test_emulators import CASES as READINGS
from tests.unit.calls.providers.test_emulators import MISREAD, Outcome, right


@dataclass(frozen=True, slots=True)
class Expected:
    """What a flow returns, in how many calls, at an end that occurs once, and at one that stays."""

    once: Came
    once_calls: int
    always: Came
    calls: int


def again(always: Came, calls: int) -> Expected:
    """Expects another request, which helps when the end does not recur."""
    return Expected(Came.KEPT, 2, always, calls)


def at_once(came: Came) -> Expected:
    """Expects no other request."""
    return Expected(came, 1, came, 1)


@dataclass(frozen=True, slots=True)
class Row:
    """One flow."""

    cut: Expected
    thinking: Expected
    useless: Expected
    refused: Expected


#: The ends that a column of the table covers.
COLUMNS: Mapping[str, frozenset[End]] = {
    "cut": frozenset({End.LENGTH}),
    "thinking": frozenset({End.THINKING}),
    "useless": frozenset({End.EMPTY, End.TOOL_CALL, End.UNKNOWN}),
    "refused": frozenset({End.REFUSAL, End.FILTER}),
}
assert set(COLUMNS) == {one.name for one in fields(Row)}

_PRISM = again(Came.FAILED, 2)
_FAILS = again(Came.FAILED, 3)
_UNREADABLE = again(Came.UNREADABLE, 3)
_WITHOUT = again(Came.WITHOUT, 3)
_REFUSED = at_once(Came.REFUSED)
_SUMMARY = Row(again(Came.MARKED, 2), _FAILS, _FAILS, _REFUSED)
_VECTOR = Row(again(Came.MARKED, 3), _FAILS, _FAILS, _REFUSED)
_ANSWER = Row(again(Came.MARKED, 2), _UNREADABLE, _UNREADABLE, _REFUSED)
_MOVE = Row(_UNREADABLE, _UNREADABLE, _UNREADABLE, _REFUSED)
_CLOSE = Row(_UNREADABLE, _UNREADABLE, _UNREADABLE, at_once(Came.UNREADABLE))
_HELPS = Row(_WITHOUT, _WITHOUT, _WITHOUT, at_once(Came.WITHOUT))
#: Of two pieces; the second one is read where the first is refused.
_PIECE = again(Came.UNREADABLE, 6)

ROWS: Mapping[str, Row] = {
    # Twice for all of the text, then for the first half of it.
    "prism.revise": Row(again(Came.FAILED, 4), _PRISM, _FAILS, _REFUSED),
    "prism.revise-focused": Row(again(Came.FAILED, 4), _PRISM, _FAILS, _REFUSED),
    "prism.consolidate": Row(_PRISM, _PRISM, _FAILS, _REFUSED),
    "prism.answer": _SUMMARY,
    "whole.answer": _ANSWER,
    "state.answer": _ANSWER,
    "answer.shape": _MOVE,
    "schema.generate": Row(_FAILS, _FAILS, _FAILS, _REFUSED),
    "tree.summarize": _SUMMARY,
    "tree.compress": _SUMMARY,
    "tree.triage": _MOVE,
    "tree.leaf": _MOVE,
    "tree.merge": _MOVE,
    "tree.remember": Row(at_once(Came.MARKED), *(at_once(Came.WITHOUT) for _ in range(3))),
    "tree.guess": _HELPS,
    "state.compress": _VECTOR,
    "state.episode": _VECTOR,
    "browse.understand": _HELPS,
    "browse.piece": Row(_PIECE, _PIECE, _PIECE, Expected(Came.PASSED, 2, Came.UNREADABLE, 2)),
    "browse.close": _CLOSE,
    "browse.read": _CLOSE,
    "browse.condense": _HELPS,
    "browse.guess": _HELPS,
    "search.rerank": Row(_FAILS, _FAILS, _FAILS, _REFUSED),
    # What is compared with is asked once, as it was published.
    "baseline.read": Row(at_once(Came.BEGUN), *(at_once(Came.WITHOUT) for _ in range(3))),
    "baseline.carry": Row(
        at_once(Came.BEGUN), at_once(Came.FAILED), at_once(Came.FAILED), _REFUSED
    ),
}


def expected(flow: str, end: End) -> Expected:
    """Returns what a flow should return at an end other than a complete reply."""
    (column,) = (name for name, ends in COLUMNS.items() if end in ends)
    found: Expected = getattr(ROWS[flow], column)
    return found


_HEADS = {
    "cut": "cut off",
    "thinking": "thoughts alone",
    "useless": "nothing, a tool, broken off",
    "refused": "refused, filtered",
}
_WORDS = {
    Came.FAILED: "fails",
    Came.REFUSED: "fails",
    Came.MARKED: "its beginning, marked",
    Came.BEGUN: "its beginning",
    Came.UNREADABLE: "no answer",
}
#: What is done without a reply of use.
_WITHOUT_IT = {
    "tree.remember": "what was read is cut",
    "tree.guess": "the option whose words fit best",
    "browse.understand": "read as for a fact",
    "browse.condense": "the notes as they are, cut",
    "browse.guess": "the option whose words fit best",
    "baseline.read": "no answer",
}


def flows_table() -> Iterator[str]:
    """Yields what becomes of each prompt whose replies keep ending so, and in how many calls."""
    yield f"| asked for | {' | '.join(_HEADS.values())} |"
    yield "| --- |" + " --- |" * len(_HEADS)
    for flow, case in CASES.items():
        cells = (_cell(flow, getattr(ROWS[flow], column)) for column in _HEADS)
        yield f"| {case.title} | {' | '.join(cells)} |"


def _cell(flow: str, want: Expected) -> str:
    words = _WITHOUT_IT[flow] if want.always is Came.WITHOUT else _WORDS[want.always]
    left_out = "without that piece; " if want.once is Came.PASSED else ""
    return f"{left_out}{words} ({want.calls})"


def providers_table() -> Iterator[str]:
    """Yields what is read of each end, and where it is another one, or there is none."""
    yield "| what happens | read as | but | not at |"
    yield "| --- | --- | --- | --- |"
    by_end: dict[str, dict[tuple[str, str], Outcome]] = {}
    for name, turn, how in _readings():
        end = f"`{turn.native}`" if turn.native else turn.scenario.value
        read = MISREAD.get((name, turn.native or turn.scenario, how), right(name, turn, how))
        by_end.setdefault(end, {})[name, how] = read
    order = [scenario.value for scenario in Scenario]
    for end in sorted(
        by_end, key=lambda end: (end not in order, end in order and order.index(end))
    ):
        yield _reading(end, by_end[end])


def _readings() -> Iterator[tuple[str, Turn, str]]:
    for one in READINGS:
        name, turn, how = one.values
        assert isinstance(name, str)
        assert isinstance(turn, Turn)
        assert isinstance(how, str)
        yield name, turn, how


def _reading(end: str, reads: Mapping[tuple[str, str], Outcome]) -> str:
    outcomes = list(reads.values())
    usual = max(outcomes, key=outcomes.count)
    others: dict[str, list[str]] = {}
    for name in PROVIDERS:
        hows = {how: read for (one, how), read in reads.items() if one == name}
        for read in dict.fromkeys(hows.values()):
            if read == usual:
                continue
            which = [how for how, one in hows.items() if one == read]
            where = name if len(which) == len(hows) else f"{name} ({which[0]})"
            others.setdefault(_read_as(read), []).append(where)
    but = "; ".join(f"{read}: {', '.join(where)}" for read, where in others.items())
    have = {name for name, _ in reads}
    # A provider's own name of an end is no other's.
    lacks = "" if end.startswith("`") else ", ".join(one for one in PROVIDERS if one not in have)
    named = f"{end} ({', '.join(sorted(have))})" if end.startswith("`") else end
    return f"| {named} | {_read_as(usual)} | {but} | {lacks} |"


def _read_as(read: Outcome) -> str:
    if isinstance(read, Fault):
        return f"error: {read.value}"
    return read.value if isinstance(read, End) else read
