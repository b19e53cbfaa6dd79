"""What a prompt says, read back from its text: for scripted models, and to check prompts."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from service.domain.answers.browse.spec import BrowseAction, BrowseOption
from service.domain.answers.browse.wording import offered
from service.domain.prompting.flows import ModelRequest
from service.domain.values.json_values import restore
from service.domain.values.paths import Path
from service.llm.offline.prompt import Prompt


@dataclass(frozen=True, kw_only=True)
class ReviseContent:
    """New chunks for a memory."""

    task: str
    texts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ConsolidateContent:
    """A memory, or a part of it, to be said in fewer words."""

    value: Any
    budget_tokens: int


@dataclass(frozen=True, kw_only=True)
class SchemaContent:
    """What a schema is wanted for."""

    domain: str
    example_query: str


@dataclass(frozen=True, kw_only=True)
class SummarizeContent:
    """A text to be summarized."""

    text: str
    max_tokens: int


@dataclass(frozen=True, kw_only=True)
class CompressContent:
    """Summaries to be made one."""

    summaries: tuple[str, ...]
    max_tokens: int


@dataclass(frozen=True, kw_only=True)
class TriageContent:
    """Summaries, one or some of which are to be chosen."""

    summaries: tuple[str, ...]
    #: Numbers of the summaries that can be chosen.
    open: tuple[int, ...]
    may_revert: bool
    beam: int


@dataclass(frozen=True, kw_only=True)
class LeafContent:
    """A text that may answer the question."""

    text: str
    notes: str
    options: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RememberContent:
    """The working memory, to be said in fewer words."""

    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MergeContent:
    """Answers of several leaves, with their reasons."""

    answers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CompressStepsContent:
    """A state vector, or the task, and the steps since."""

    current: str
    current_is_task: bool
    steps: tuple[tuple[int, str], ...]
    pinned: tuple[str, ...]
    max_tokens: int
    #: The last reply, where that was too long.
    too_long: str = ""


@dataclass(frozen=True, kw_only=True)
class CompressVectorsContent:
    """The vector of the level above, and those of a level."""

    above: str
    vectors: tuple[str, ...]
    pinned: tuple[str, ...]
    max_tokens: int
    too_long: str = ""


@dataclass(frozen=True, kw_only=True)
class ContextAnswerContent:
    """A working context, and the question."""

    query: str
    task: str
    vectors: tuple[str, ...]
    recent: tuple[tuple[int, str], ...]


@dataclass(frozen=True, kw_only=True)
class UnderstandContent:
    """A query to be understood before anything is read."""

    query: str
    options: tuple[BrowseOption, ...]


@dataclass(frozen=True, kw_only=True)
class PieceContent:
    """A piece, and what may be done with it."""

    look_for: str
    parts: tuple[tuple[int, str], ...]
    #: The lines of the notes.
    notes: tuple[str, ...]
    offers: tuple[BrowseAction, ...]


@dataclass(frozen=True, kw_only=True)
class CloseContent:
    """Notes, or pieces, that the answer is to be made from."""

    notes: tuple[str, ...]
    parts: tuple[tuple[int, str], ...]
    offers: tuple[BrowseAction, ...]


@dataclass(frozen=True, kw_only=True)
class CondenseContent:
    """Notes to be made one."""

    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class GuessContent:
    """Options, of which the likeliest is to be chosen."""

    options: tuple[str, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RerankContent:
    """Passages to be put in order."""

    query: str
    texts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ShapedAnswer:
    """An answer that is to follow a schema."""

    answer: str


@dataclass(frozen=True, kw_only=True)
class ReadContent:
    """A text, and a baseline's question about it."""

    query: str
    options: tuple[str, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CarryContent:
    """The next part of a text, and the summary so far."""

    carried: str
    text: str
    max_tokens: int


def content_of(ask: ModelRequest) -> Any:
    """Returns what a prompt says; None for a template that no test reads."""
    read = _READERS.get(ask.template.partition("/")[0])
    return None if read is None else read(Prompt(ask))


def _revise(prompt: Prompt) -> ReviseContent:
    task = prompt.plain("TASK").partition("\n")[0]
    return ReviseContent(task=task, texts=tuple(prompt.texts("TEXT")))


def _consolidate(prompt: Prompt) -> ConsolidateContent:
    value: Any = {}
    for line in prompt.text("MEMORY").split("\n"):
        shown: Any = restore(line)
        for place, part in shown.items():
            value = _placed(value, Path.parse(place).tokens, part) if place[0] == "$" else shown
    budget = int(re.findall(r"\d+", prompt.plain("SIZE"))[-1])
    return ConsolidateContent(value=value, budget_tokens=budget)


def _placed(value: Any, steps: tuple[str | int, ...], part: Any) -> Any:
    if not steps:
        return part
    return {**value, steps[0]: _placed(value.get(steps[0], {}), steps[1:], part)}


def _schema(prompt: Prompt) -> SchemaContent:
    return SchemaContent(domain=prompt.text("DOMAIN"), example_query=prompt.text("EXAMPLE QUERY"))


def _summarize(prompt: Prompt) -> SummarizeContent:
    return SummarizeContent(text=prompt.text("TEXT"), max_tokens=prompt.limit)


def _compress(prompt: Prompt) -> CompressContent:
    return CompressContent(summaries=tuple(prompt.texts("SUMMARIES")), max_tokens=prompt.limit)


def _triage(prompt: Prompt) -> TriageContent:
    moves = [int(one) for one in prompt.plain("MOVES").split("\n")[0].split(", ")]
    beam = re.search(r"at most (\d+) parts in all", prompt.instructions)
    return TriageContent(
        summaries=tuple(prompt.texts("SUMMARIES")),
        open=tuple(one for one in moves if one >= 0),
        may_revert=-1 in moves,
        beam=int(beam[1]) if beam else 1,
    )


def _leaf(prompt: Prompt) -> LeafContent:
    options = tuple(prompt.options.values())
    return LeafContent(text=prompt.text("TEXT"), notes=prompt.text("NOTES"), options=options)


def _steps(prompt: Prompt) -> CompressStepsContent:
    return CompressStepsContent(
        current=prompt.text("TASK") or prompt.text("STATE"),
        current_is_task=not prompt.texts("STATE"),
        steps=tuple(prompt.numbered("STEPS")),
        pinned=tuple(prompt.texts("PINNED")),
        max_tokens=prompt.limit,
        too_long=prompt.text("TOO LONG") or prompt.text("CUT OFF"),
    )


def _vectors(prompt: Prompt) -> CompressVectorsContent:
    return CompressVectorsContent(
        above=prompt.text("EARLIER"),
        vectors=tuple(prompt.texts("STATES")),
        pinned=tuple(prompt.texts("PINNED")),
        max_tokens=prompt.limit,
        too_long=prompt.text("TOO LONG") or prompt.text("CUT OFF"),
    )


def _context(prompt: Prompt) -> ContextAnswerContent:
    return ContextAnswerContent(
        query=prompt.query,
        task=prompt.plain("TASK").removesuffix("\n"),
        vectors=tuple(prompt.texts("STATE")),
        recent=tuple(prompt.numbered("STEPS")),
    )


def _understand(prompt: Prompt) -> UnderstandContent:
    options = (one for one in BrowseOption if f"\n{one.value}: " in prompt.instructions)
    return UnderstandContent(query=prompt.query, options=tuple(options))


def _piece(prompt: Prompt) -> PieceContent:
    _, said, look_for = prompt.query.rpartition("\nLook for: ")
    return PieceContent(
        look_for=look_for if said else "",
        parts=tuple(prompt.numbered("TEXT")),
        notes=tuple(prompt.text("NOTES").split("\n") if prompt.text("NOTES") else ()),
        offers=tuple(offered(prompt.instructions)),
    )


def _numbered(prompt: Prompt) -> tuple[str, ...]:
    return tuple(text for _, text in prompt.numbered("NOTES"))


def _close(prompt: Prompt) -> CloseContent:
    parts, offers = tuple(prompt.numbered("TEXT")), tuple(offered(prompt.instructions))
    return CloseContent(notes=_numbered(prompt), parts=parts, offers=offers)


def _guess(prompt: Prompt) -> GuessContent:
    texts = _numbered(prompt) or tuple(text for _, text in prompt.numbered("TEXT"))
    return GuessContent(options=tuple(prompt.options.values()), texts=texts)


def _rerank(prompt: Prompt) -> RerankContent:
    return RerankContent(query=prompt.query, texts=tuple(prompt.texts("PASSAGES")))


def _read(prompt: Prompt) -> ReadContent:
    options = tuple(prompt.options.values())
    return ReadContent(query=prompt.query, options=options, texts=tuple(prompt.texts("TEXT")))


def _carry(prompt: Prompt) -> CarryContent:
    carried, text = prompt.text("SUMMARY"), prompt.text("TEXT")
    return CarryContent(carried=carried, text=text, max_tokens=prompt.limit)


_READERS: dict[str, Callable[[Prompt], object]] = {
    "prism.revise": _revise,
    "prism.revise-focused": _revise,
    "prism.consolidate": _consolidate,
    "prism.consolidate-part": _consolidate,
    "schema.generate": _schema,
    "tree.summarize": _summarize,
    "tree.compress": _compress,
    "tree.triage": _triage,
    "tree.leaf": _leaf,
    "tree.remember": lambda prompt: RememberContent(notes=tuple(prompt.texts("NOTES"))),
    "tree.merge": lambda prompt: MergeContent(answers=tuple(prompt.texts("ANSWERS"))),
    "state.compress": _steps,
    "state.episode": _vectors,
    "state.answer": _context,
    "browse.understand": _understand,
    "browse.piece": _piece,
    "browse.close": _close,
    "browse.read": _close,
    "browse.condense": lambda prompt: CondenseContent(notes=_numbered(prompt)),
    "browse.guess": _guess,
    "search.rerank": _rerank,
    "answer.shape": lambda prompt: ShapedAnswer(answer=prompt.text("ANSWER")),
    "baseline.read": _read,
    "baseline.carry": _carry,
}
