"""Navigation: from the root of a tree to the leaf that answers (section 3).

At an inner node the model sees the summaries of its children and goes down to one of them,
or back up; at a leaf it reads the text and answers, or goes back up. Beyond the paper it
may go down to several at once (`beam`), and begin with leaves that retrieval names
(`hybrid_leaves`). It ends after as many calls as the depth of the tree allows (`most_calls`).
The last one shows the leaves that were read together: they may say what no single one says.

Which event carries which action:

- RETRIEVAL: NONE. TRIAGE: ENTER, REVERT or INVALID; NONE with its target for a root with
  one child, where no model is asked. LEAF: ANSWER, REVERT or INVALID.
- WORKING_MEMORY: NONE, or INVALID when nothing came back. MERGE: ANSWER or INVALID; also of
  a prompt that has an option chosen where no leaf answered, and of leaves that are read
  together, where REVERT says that they have no answer.
- END: ANSWER with the answer, or NONE with the value of NoAnswer.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Unpack

from service.domain.access.trust import least_trust
from service.domain.answers.citations import best_position
from service.domain.answers.options import likeliest, normal
from service.domain.answers.trajectory import Action, Emit, EventKind, NoAnswer
from service.domain.prompting.asking import NoUse, check_refused, fault_of_end
from service.domain.prompting.cutting import cut_back
from service.domain.prompting.ends import End
from service.domain.prompting.fitting import MIN_SHOWN_TOKENS, PromptTerms, TextTooLong, cut_to
from service.domain.prompting.flows import Fetch, FetchingFlow, ModelReply, ModelRequest
from service.domain.prompting.thoughts import said
from service.domain.search.ranking import ranked
from service.domain.tree.exploring import Exploration, VisitedNode, most_calls
from service.domain.tree.moves import (
    Enter,
    Move,
    NavigationAnswer,
    Revert,
    Unreadable,
    read_guess,
    read_leaf,
    read_merge,
    read_triage,
)
from service.domain.tree.nodes import BestLeaves, Children, LeafText, NodeView, Text
from service.domain.tree.prompts import NavigationPrompts, TreeQuestion
from service.domain.tree.recording import Navigation, NavigationRecorder
from service.domain.tree.spec import TreeSpec, WorkingMemory

__all__ = ["MAX_ATTEMPTS", "TextTooLong", "TreeQuestion", "navigate"]

#: Replies in a row that may be unreadable, at one node.
MAX_ATTEMPTS = 3


def navigate(
    question: TreeQuestion,
    root: NodeView,
    *,
    spec: TreeSpec,
    text_tokens: int,
    **terms: Unpack[PromptTerms],
) -> FetchingFlow[Navigation]:
    """Answers a question from the tree below `root`.

    Asks for moves, fetches children, texts and leaves, and emits each event right after its call.
    `text_tokens` are the tree's, for the statistics. Of several options one is always chosen: the
    likeliest where no text gives the answer. Raises TextTooLong when a prompt cannot be made to
    fit into the window, and NoUse when the model refuses a text.
    """
    prompts = NavigationPrompts(question=question, spec=spec, **terms)
    return (
        yield from _Navigation(
            question=question,
            exploration=Exploration(root=VisitedNode(root)),
            prompts=prompts,
            recorder=NavigationRecorder(text_tokens=text_tokens),
        ).run()
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _LeafAnswer:
    """An answer and the leaf that it is from."""

    leaf: str
    answer: NavigationAnswer


@dataclass(kw_only=True, slots=True)
class _Navigation:
    """One navigation under way."""

    question: TreeQuestion
    exploration: Exploration
    prompts: NavigationPrompts
    recorder: NavigationRecorder
    #: Whether the root was begun with; before that come the leaves that retrieval named.
    began: bool = False
    #: Answers of the present round, the most promising leaf's first.
    found: list[_LeafAnswer] = field(default_factory=list)
    #: Leaves whose text does not have the answer by itself, and what the model said of them.
    passed: list[VisitedNode] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    @property
    def root(self) -> VisitedNode:
        return self.exploration.root

    @property
    def spec(self) -> TreeSpec:
        return self.prompts.spec

    @property
    def bound(self) -> int:
        """Calls that the depth of the tree allows."""
        first, beam = self.question.hybrid_leaves, self.question.beam
        return most_calls(self.root.view.level, beam=beam, first_leaves=first)

    @property
    def calls_left(self) -> int:
        return min(self.question.max_calls, self.bound) - self.recorder.calls

    @property
    def kept_calls(self) -> int:
        """Calls that are for reading leaves together, and then for a guess."""
        return 1 + bool(self.question.options) if len(self.passed) > 1 else 0

    def run(self) -> FetchingFlow[Navigation]:
        """Navigates round by round: each asks up to `beam` open nodes at once."""
        if self.root.view.is_leaf and self.root.view.text_tokens == 0:
            return (yield from self._fail(NoAnswer.EMPTY))
        if self.question.hybrid_leaves and not self.root.view.is_leaf:
            yield from self._retrieve()
        while True:
            if not self.exploration.line and not self._begin_at_root():
                return (yield from self._fail(NoAnswer.NOT_FOUND))
            spots = self.exploration.line[: self.question.beam]
            yield from self._look_up(spots)
            if spots == [self.root] and len(self.root.view.children) == 1:
                yield from self._enter_only_child()
                continue
            yield from self._shorten_memory(spots)
            spots = spots[: max(self.calls_left - self.kept_calls, 0)]
            if not spots:
                return (yield from self._read_together())
            yield from self._ask(spots)
            if self.found:
                return (yield from self._conclude())
            if any(spot.attempt > MAX_ATTEMPTS for spot in spots):
                return (yield from self._fail(NoAnswer.UNREADABLE))

    def _begin_at_root(self) -> bool:
        """Begins at the root; returns whether anything is left to find below it."""
        if self.began or self.root.node_id in self.exploration.refuted:
            return False
        self.began = True
        self.exploration.begin(self.root)
        return True

    def _retrieve(self) -> FetchingFlow[None]:
        """Begins with the leaves that fit the question best."""
        count = self.question.hybrid_leaves
        (paths,) = yield [BestLeaves(query=self.question.query, count=count)]
        leaves: dict[str, VisitedNode] = {}
        for path in paths[:count]:
            spot = self.root
            for view in path:
                spot = self.exploration.spot(view, spot)
            leaves.setdefault(spot.node_id, spot)
        self.exploration.begin(*leaves.values())
        yield from self._tell(EventKind.RETRIEVAL, Action.NONE, shown=tuple(leaves))

    def _look_up(self, spots: Sequence[VisitedNode]) -> FetchingFlow[None]:
        """Fetches what the prompts of these nodes show, where it is not known yet."""
        missing = [
            spot for spot in spots if (spot.text if spot.view.is_leaf else spot.children) is None
        ]
        fetches: list[Fetch] = [
            Text(node_id=spot.node_id) if spot.view.is_leaf else Children(node_id=spot.node_id)
            for spot in missing
        ]
        if not fetches:
            return
        for spot, held in zip(missing, (yield fetches), strict=True):
            if isinstance(held, LeafText):
                spot.text, spot.trust = held.text, held.trust
            else:
                spot.children = tuple(self.exploration.spot(view, spot) for view in held)

    def _enter_only_child(self) -> FetchingFlow[None]:
        """Enters the only child without a model call: there is no choice."""
        children = _children(self.root)
        self.exploration.enter(self.root, children)
        ids = self.root.view.children
        yield from self._tell(EventKind.TRIAGE, Action.NONE, spot=self.root, shown=ids, targets=ids)

    def _shorten_memory(self, spots: Sequence[VisitedNode]) -> FetchingFlow[None]:
        """Has the model shorten working memories that passed their limit.

        Never by the last call: that is for a move.
        """
        if self.spec.working_memory is not WorkingMemory.SUMMARIZED:
            return
        limit = self.spec.working_memory_tokens
        above = {
            spot.parent.node_id: spot.parent for spot in spots if spot.parent and spot.carried()
        }
        long = [
            spot
            for spot in above.values()
            if spot.shortened is None and self._tokens(spot.handed_down()) > limit
        ][: max(self.calls_left - self.kept_calls - 1, 0)]
        if not long:
            return
        asks = [self.prompts.remember(spot.handed_down()) for spot in long]
        for spot, ask, reply in zip(long, asks, (yield asks), strict=True):
            short = cut_to(_shortened(reply), limit, self.prompts.count)
            # A memory with no usable reply is not asked for again: it is cut like others.
            spot.shortened = (short,) if short else spot.handed_down()
            yield from self._tell(
                EventKind.WORKING_MEMORY,
                Action.NONE if short else Action.INVALID,
                spot=spot,
                text=short or fault_of_end(reply) or "it is empty",
                ask=ask,
                reply=reply,
            )

    def _tokens(self, texts: Iterable[str]) -> int:
        return sum(map(self.prompts.count, texts))

    def _notes(self, spot: VisitedNode) -> str:
        """Returns the working memory at a node: the nearest whole, what is further cut."""
        if self.spec.working_memory is WorkingMemory.OFF:
            return ""
        left = self.spec.working_memory_tokens
        kept: list[str] = []
        for summary in reversed(spot.carried()):
            part = cut_to(summary, left, self.prompts.count)
            if not part or (part != summary and left < MIN_SHOWN_TOKENS):
                break
            kept.append(part)
            left -= self.prompts.count(part)
            if part != summary:
                break
        return "\n\n".join(reversed(kept))

    def _ask(self, spots: Sequence[VisitedNode]) -> FetchingFlow[None]:
        """Asks at open nodes, all at once, and makes the moves in their order."""
        asks = [self._prompt(spot) for spot in spots]
        for spot, ask, reply in zip(spots, asks, (yield asks), strict=True):
            move = self._read(spot, reply)
            event = self.recorder.move(spot, move, ask, reply)
            self._make(spot, move, reply)
            yield [Emit(event=event)]
            check_refused(reply)

    def _prompt(self, spot: VisitedNode) -> ModelRequest:
        ask = self._first_prompt(spot)
        if spot.reply is None:
            return ask
        return self.prompts.again(ask, spot.reply, spot.fault, spot.attempt)

    def _first_prompt(self, spot: VisitedNode) -> ModelRequest:
        notes = self._notes(spot)
        if spot.view.is_leaf:
            assert spot.text is not None, "it was looked up"
            return self.prompts.leaf(spot.view, spot.text, notes=notes, trust=spot.trust)
        return self.prompts.triage(
            spot.view,
            [child.view for child in _children(spot)],
            notes=notes,
            closed=self.exploration.closed(spot),
            may_revert=spot.parent is not None,
        )

    def _read(self, spot: VisitedNode, reply: ModelReply) -> Move:
        fault = fault_of_end(reply)
        if fault is not None:
            return Unreadable(text=fault)
        if spot.view.is_leaf:
            return read_leaf(reply.text, options=self.question.options)
        return read_triage(
            reply.text,
            shown=len(spot.view.children),
            closed=self.exploration.closed(spot),
            may_revert=spot.parent is not None,
            beam=self.question.beam,
        )

    def _make(self, spot: VisitedNode, move: Move, reply: ModelReply) -> None:
        if isinstance(move, Unreadable):
            spot.attempt += 1
            spot.fault, spot.reply = move.text, reply
            return
        spot.attempt, spot.fault, spot.reply = 1, "", None
        match move:
            case Enter():
                children = _children(spot)
                self.exploration.enter(spot, [children[number] for number in move.targets])
            case Revert():
                self.exploration.refute(spot)
                if spot.view.is_leaf:
                    self.passed.append(spot)
                    self.findings += [move.reasoning] if move.reasoning else []
            case NavigationAnswer():
                self.found.append(_LeafAnswer(leaf=spot.node_id, answer=move))

    def _conclude(self) -> FetchingFlow[Navigation]:
        """Makes the answer from those of a round."""
        first = self.found[0].answer
        if len({normal(one.answer.text) for one in self.found}) == 1:
            return (yield from self._succeed(first, [one.leaf for one in self.found]))
        ask = self.prompts.merge([one.answer for one in self.found])
        merged, why = yield from self._chosen(ask, self._read_merge, self.found_leaves)
        if merged is None:
            return (yield from self._fail(why))
        return (yield from self._succeed(merged, self._cited(merged)))

    def _read_together(self) -> FetchingFlow[Navigation]:
        """Ends when calls are used up: by what the leaves that were read say together, if anything.

        Those whose words fit the question best are shown, as many as have room.
        """
        is_bounded = self.bound <= self.question.max_calls
        why = NoAnswer.NOT_FOUND if is_bounded else NoAnswer.STEP_LIMIT
        ask, leaves = self._together()
        if ask is None or not self.calls_left:
            return (yield from self._fail(why, bounded=is_bounded))
        try:
            answer, _ = yield from self._chosen(
                ask,
                lambda reply: read_leaf(reply, options=self.question.options),
                tuple(leaf.node_id for leaf in leaves),
            )
        except NoUse:
            # Each was read by itself: together they say no less.
            answer = None
        if answer is None:
            return (yield from self._fail(why, bounded=is_bounded))
        texts = list(enumerate(leaf.text or "" for leaf in leaves))
        best = leaves[best_position(answer.text, texts, around=answer.reasoning)]
        return (yield from self._succeed(answer, [best.node_id]))

    def _together(self) -> tuple[ModelRequest | None, list[VisitedNode]]:
        """Returns the prompt of several leaves, and these; None where there are no two."""
        texts = [leaf.text or "" for leaf in self.passed]
        best = [self.passed[number] for number in ranked(self.question.query, texts)]
        sizes = accumulate(leaf.view.text_tokens for leaf in best)
        best = best[: sum(size <= self.prompts.window_tokens for size in sizes)]
        while len(best) > 1:
            shown = sorted(best, key=lambda leaf: leaf.view.start)
            ask = self.prompts.together(
                [leaf.text or "" for leaf in shown], least_trust(leaf.trust for leaf in shown)
            )
            if ask is not None:
                return ask, shown
            best.pop()
        return None, []

    def _read_merge(self, reply: str) -> NavigationAnswer | Unreadable:
        return read_merge(
            reply,
            answers=len(self.found),
            options=self.question.options,
            rivals={one.answer.text for one in self.found},
        )

    def _chosen(
        self,
        first: ModelRequest,
        read: Callable[[str], NavigationAnswer | Revert | Unreadable],
        shown: tuple[str, ...],
    ) -> FetchingFlow[tuple[NavigationAnswer | None, NoAnswer]]:
        """Returns the choice of the first reply that makes one; without it, why there is none.

        `shown` are the leaves that the prompt is from.
        """
        ask, attempt = first, 1
        while attempt <= MAX_ATTEMPTS:
            if self.calls_left < 1:
                return None, NoAnswer.STEP_LIMIT
            (reply,) = yield [ask]
            fault = fault_of_end(reply)
            move = read(reply.text) if fault is None else Unreadable(text=fault)
            leaves = self._cited(move) if isinstance(move, NavigationAnswer) else ()
            yield from self._tell(
                EventKind.MERGE,
                move.action,
                shown=shown,
                targets=leaves,
                reasoning=move.reasoning,
                text=move.text,
                ask=ask,
                reply=reply,
            )
            if not isinstance(move, Unreadable):
                return move if isinstance(move, NavigationAnswer) else None, NoAnswer.NOT_FOUND
            check_refused(reply)
            attempt += 1
            ask = self.prompts.again(first, reply, move.text, attempt)
        return None, NoAnswer.UNREADABLE

    @property
    def found_leaves(self) -> tuple[str, ...]:
        return tuple(one.leaf for one in self.found)

    def _cited(self, merged: NavigationAnswer) -> tuple[str, ...]:
        """Returns the leaves that a merged answer names, else those that answered it."""
        if merged.sources:
            return tuple(self.found[number].leaf for number in merged.sources)
        same = [one for one in self.found if normal(one.answer.text) == normal(merged.text)]
        return tuple(one.leaf for one in same or self.found)

    def _succeed(self, answer: NavigationAnswer, leaves: Sequence[str]) -> FetchingFlow[Navigation]:
        yield from self._tell(EventKind.END, Action.ANSWER, text=answer.text, targets=tuple(leaves))
        return Navigation(
            text=answer.text,
            no_answer=None,
            leaves=tuple(leaves),
            reasoning=answer.reasoning,
            statistics=self.recorder.statistics,
        )

    def _fail(self, why: NoAnswer, *, bounded: bool = False) -> FetchingFlow[Navigation]:
        if self.question.options and why is not NoAnswer.EMPTY:
            return (yield from self._guess())
        yield from self._tell(EventKind.END, Action.NONE, text=why.value)
        return Navigation(
            text="",
            no_answer=why,
            leaves=(),
            reasoning="",
            statistics=self.recorder.statistics,
            bounded=bounded,
        )

    def _guess(self) -> FetchingFlow[Navigation]:
        """Guesses an option: by a leaf's answer, else by the model, else by its words."""
        known = self._known()
        chosen, leaves = None, self.found_leaves[:1]
        if leaves:
            chosen = self.found[0].answer
        elif known and self.calls_left:
            try:
                ask = self.prompts.guess(known)
                options = self.question.options
                chosen, _ = yield from self._chosen(
                    ask, lambda reply: read_guess(reply, options=options), self.found_leaves
                )
            except (NoUse, TextTooLong):
                # Refused, or no room: the words decide.
                pass
        likely = chosen or NavigationAnswer(text=likeliest(self.question.options, known))
        navigation = yield from self._succeed(likely, leaves)
        return replace(navigation, guessed=True)

    def _known(self) -> list[str]:
        """Returns what is known of the text: summaries of its parts, and findings of leaves."""
        if self.root.view.is_leaf:
            about = [self.root.text or ""]
        else:
            about = [child.view.summary for child in self.root.children or ()]
        known = [*(about or [self.root.view.summary]), *self.findings]
        return [one for one in known if one.strip()]

    def _tell(self, kind: EventKind, action: Action, **said: Any) -> FetchingFlow[None]:
        yield [Emit(event=self.recorder.event(kind, action, **said))]


def _shortened(reply: ModelReply) -> str:
    """Returns the working memory in a reply; of one that was cut off, what there is of it."""
    if reply.end not in (End.COMPLETE, End.LENGTH):
        return ""
    text = said(reply.text).strip()
    return cut_back(f"{text} ", len(text)) if text and reply.end is End.LENGTH else text


def _children(spot: VisitedNode) -> tuple[VisitedNode, ...]:
    assert spot.children is not None, "they were looked up"
    return spot.children
