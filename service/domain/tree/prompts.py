"""The prompts of navigation, with the parts first that many questions share.

Instructions, then the node's summaries or the leaf's text, then the working memory, last
what was read before and the question. Text of stored nodes never changes, and so neither
do its marks: it may stand in a segment that other questions begin with.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from service.domain.access.trust import Trust
from service.domain.answers.navigation_request import NavigationRequest
from service.domain.answers.options import letter_of
from service.domain.prompting.asking import asked_again
from service.domain.prompting.fitting import (
    MARGIN_TOKENS,
    Count,
    TextTooLong,
    cut_to,
    fitted,
    prompt_tokens,
)
from service.domain.prompting.flows import ModelReply, ModelRequest, Purpose, Segment, SegmentKind
from service.domain.prompting.marking import marked, trust_note
from service.domain.tree import wording
from service.domain.tree.moves import NavigationAnswer
from service.domain.tree.nodes import NodeView
from service.domain.tree.spec import TreeSpec, WorkingMemory
from service.domain.tree.wording import Role
from service.domain.values.memory_specs import ReplyFormat

#: Tokens that a reply may have at most, thoughts before it included; never more than a
#: quarter of the window.
MOVE_OUTPUT_TOKENS = 2048
#: Tokens that a shortened working memory may have besides: for what a model thinks before it.
THOUGHT_TOKENS = 1024
#: The working memory gets one part in so many of a prompt's room, where not all fits.
NOTES_SHARE = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeQuestion(NavigationRequest):
    """What is asked of a tree, and how it is to be navigated."""

    query: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NavigationPrompts:
    """Makes the prompts of one navigation. All raise TextTooLong."""

    question: TreeQuestion
    spec: TreeSpec
    #: Tokens of prompt and reply together.
    window_tokens: int
    marker_key: bytes
    count: Count

    @property
    def _output_tokens(self) -> int:
        return max(min(MOVE_OUTPUT_TOKENS, self.window_tokens // 4), 1)

    @property
    def _room(self) -> int:
        return self._room_beside(self._output_tokens)

    def _room_beside(self, output_tokens: int) -> int:
        return self.window_tokens - output_tokens - MARGIN_TOKENS

    def triage(
        self,
        view: NodeView,
        children: Sequence[NodeView],
        *,
        notes: str,
        closed: Collection[int],
        may_revert: bool,
    ) -> ModelRequest:
        """Asks which of a node's children to look into; `closed` are the numbers of those read."""
        role = wording.triage(self.question.beam)
        free = tuple(number for number in range(len(children)) if number not in closed)

        def build(summaries: Sequence[str], notes: str = notes) -> tuple[Segment, ...]:
            return (
                self._task(role),
                *self._summaries(view, children, summaries),
                *self._notes(notes),
                self._last(
                    _read_lines(closed),
                    self._question_lines(),
                    _moves_lines(free, may_revert),
                    wording.CLOSING,
                ),
            )

        shown = tuple(child.summary for child in children)
        if prompt_tokens(build(shown), self.count) > self._room:
            notes = cut_to(notes, max(self._room, 0) // NOTES_SHARE, self.count)
            shown = fitted(lambda cut: build(cut, notes), shown, self._room, self.count)
        return self._ask(role, build(shown, notes))

    def leaf(
        self, view: NodeView, text: str, *, notes: str, trust: Trust = Trust.TRUSTED
    ) -> ModelRequest:
        """Returns whether a leaf's text has the answer, and which."""
        shown = _base("[TEXT]\n" + self._marked(text, trust), lasting=view.is_stored)

        def build(notes: str) -> tuple[Segment, ...]:
            return self._leaf(shown, notes, trust)

        notes = self._notes_beside(build, view, text, notes)
        return self._ask(wording.LEAF, build(notes))

    def together(self, texts: Sequence[str], trust: Trust = Trust.TRUSTED) -> ModelRequest | None:
        """Returns whether the texts of several leaves have the answer; None: they have no room."""
        text = "[TEXT]\n" + self._marked("\n\n".join(texts), trust)
        segments = self._leaf(Segment(kind=SegmentKind.BASE, text=text, reusable=False), "", trust)
        if prompt_tokens(segments, self.count) > self._room:
            return None
        return self._ask(wording.LEAF, segments)

    def _leaf(self, text: Segment, notes: str, trust: Trust) -> tuple[Segment, ...]:
        return (
            self._task(wording.LEAF),
            text,
            *self._notes(notes),
            self._last(
                trust_note((trust,)),
                self._question_lines(),
                self._options_lines(),
                "[MOVES]\n-2, -1\n",
                wording.CLOSING,
            ),
        )

    def _notes_beside(
        self, build: Callable[[str], tuple[Segment, ...]], view: NodeView, text: str, notes: str
    ) -> str:
        """Returns as much of the working memory as has room beside a text, which is never cut."""
        excess = prompt_tokens(build(notes), self.count) - self._room
        if excess > 0 and notes:
            notes = cut_to(notes, self.count(notes) - excess, self.count)
            excess = prompt_tokens(build(notes), self.count) - self._room
        if excess > 0 and notes:
            notes = ""
            excess = prompt_tokens(build(notes), self.count) - self._room
        if excess > 0:
            raise TextTooLong(
                f"the text of leaf {view.node_id} ({self.count(text)} tokens) does not fit into"
                f" the model's window of {self.window_tokens} tokens with the question and the"
                f" reply: {excess} tokens are too many"
            )
        return notes

    def remember(self, notes: Sequence[str]) -> ModelRequest:
        """Returns the working memory in fewer words."""
        limit = self.spec.working_memory_tokens
        output = max(min(2 * limit + THOUGHT_TOKENS, self.window_tokens // 4), 1)

        def build(notes: Sequence[str]) -> tuple[Segment, ...]:
            shown = "".join(self._marked(note) for note in notes)
            size = f"[SIZE]\nThe notes may have at most {limit} tokens.\n"
            return (
                Segment(kind=SegmentKind.TASK, text=wording.REMEMBER_TASK),
                Segment(kind=SegmentKind.CHUNK, text="[NOTES]\n" + shown, reusable=False),
                self._last(self._question_lines(), size),
            )

        shown = fitted(build, notes, self._room_beside(output), self.count)
        return ModelRequest(
            purpose=Purpose.NAVIGATE,
            template=wording.REMEMBER,
            segments=build(shown),
            max_output_tokens=output,
        )

    def merge(self, answers: Sequence[NavigationAnswer]) -> ModelRequest:
        """Asks for one answer from those of several leaves."""
        words = [_answer_words(answer) for answer in answers]

        def build(words: Sequence[str]) -> tuple[Segment, ...]:
            shown = "".join(
                f"Answer {number}:\n{self._marked(one)}" for number, one in enumerate(words)
            )
            return (
                self._task(wording.MERGE),
                self._last(
                    self._question_lines(),
                    self._options_lines(),
                    f"[ANSWERS]\n{shown}",
                    wording.CLOSING,
                ),
            )

        return self._ask(wording.MERGE, build(fitted(build, words, self._room, self.count)))

    def guess(self, notes: Sequence[str]) -> ModelRequest:
        """Asks which option is the likeliest, where no text gave the answer."""

        def build(notes: Sequence[str]) -> tuple[Segment, ...]:
            shown = "".join(map(self._marked, notes))
            return (
                self._task(wording.GUESS),
                self._last(
                    f"[NOTES]\n{shown}",
                    self._question_lines(),
                    self._options_lines(),
                    wording.CLOSING,
                ),
            )

        return self._ask(wording.GUESS, build(fitted(build, notes, self._room, self.count)))

    def again(self, ask: ModelRequest, reply: ModelReply, fault: str, attempt: int) -> ModelRequest:
        """Returns the prompt after a reply to `ask` that was no use; `attempt` is 2 or more.

        Where tokens ran out it gets more, as far as the window has them.
        """
        asked = asked_again(ask, reply, fault, tries=attempt - 1, most_tokens=self.window_tokens)
        free = self.window_tokens - prompt_tokens(asked.segments, self.count) - MARGIN_TOKENS
        bound = max(min(asked.max_output_tokens, free), 1)
        return replace(asked, max_output_tokens=bound, attempt=attempt - 1)

    def _ask(self, role: Role, segments: tuple[Segment, ...]) -> ModelRequest:
        by_schema = self.spec.reply_format is not ReplyFormat.TEXT
        return ModelRequest(
            purpose=Purpose.NAVIGATE,
            template=role.template,
            segments=segments,
            max_output_tokens=self._output_tokens,
            reply_schema=role.schema(reasoning=self.spec.reasoning) if by_schema else None,
        )

    def _task(self, role: Role) -> Segment:
        return Segment(kind=SegmentKind.TASK, text=role.task(reasoning=self.spec.reasoning))

    def _summaries(
        self, view: NodeView, children: Sequence[NodeView], summaries: Sequence[str]
    ) -> list[Segment]:
        """Returns the summaries: of a stored node as a whole, since it never gets more of them."""
        shown = [
            f"Summary {number}:\n{self._marked(summary)}"
            for number, summary in enumerate(summaries)
        ]
        shown[0] = f"[SUMMARIES]\n{shown[0]}"
        if view.is_stored:
            return [_base("".join(shown), lasting=True)]
        return [
            _base(text, lasting=child.is_stored)
            for text, child in zip(shown, children, strict=True)
        ]

    def _notes(self, notes: str) -> list[Segment]:
        if not notes:
            return []
        # What the model wrote for this question stands before no other.
        reusable = self.spec.working_memory is not WorkingMemory.SUMMARIZED
        text = "[NOTES]\n" + self._marked(notes)
        return [Segment(kind=SegmentKind.CHUNK, text=text, reusable=reusable, lasting=False)]

    def _question_lines(self) -> str:
        return "[QUESTION]\n" + self._marked(self.question.query)

    def _options_lines(self) -> str:
        if not self.question.options:
            return ""
        # One line each, so that no option looks like two.
        lines = [
            f"({letter_of(number)}) {' '.join(option.split())}"
            for number, option in enumerate(self.question.options)
        ]
        return "[OPTIONS]\n" + self._marked("\n".join(lines))

    def _last(self, *lines: str) -> Segment:
        return Segment(kind=SegmentKind.QUERY, text="".join(lines), reusable=False)

    def _marked(self, text: str, trust: Trust = Trust.TRUSTED) -> str:
        return marked(text, self.marker_key, trust)


def _base(text: str, *, lasting: bool) -> Segment:
    return Segment(kind=SegmentKind.BASE, text=text, lasting=lasting)


def _read_lines(closed: Collection[int]) -> str:
    if not closed:
        return ""
    numbers = ", ".join(map(str, sorted(closed)))
    return f"[READ]\nThe parts of these summaries did not have the answer: {numbers}.\n"


def _moves_lines(free: Sequence[int], may_revert: bool) -> str:
    numbers = [str(number) for number in free]
    return f"[MOVES]\n{', '.join([*numbers, '-1'] if may_revert else numbers)}\n"


def _answer_words(answer: NavigationAnswer) -> str:
    if not answer.reasoning:
        return answer.text
    return f"{answer.text}\n\nThe reason given for it: {answer.reasoning}"
