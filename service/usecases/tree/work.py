"""Defines the work on a tree: what a worker keeps of it between two steps."""

from dataclasses import dataclass, field

from opentelemetry.trace import SpanContext

from service.domain.prompting.cutting import shortened
from service.domain.prompting.flows import ModelRequest
from service.domain.tree.nodes import SummarySource, TextOffset
from service.domain.tree.planning import Planned, TreePlan
from service.domain.tree.spec import TreeSpec
from service.domain.tree.summarizing import Summary
from service.domain.values.errors import FailedPrecondition
from service.domain.values.reasons import Reason
from service.llm.providers.facts import ModelFacts
from service.usecases.tree.tree_log import TreeLog
from storage.engine.claims import Claim
from storage.memories import revisions
from storage.memories.revisions import NewRevision

#: Tokens that a prompt keeps free for what a count is off by.
MARGIN_TOKENS = 64
#: Spans of nodes that are kept of a tree.
KEPT_SPANS = 4096


class TreeStepTooLarge(FailedPrecondition):
    """A prompt and its reply do not fit into the model's window, and never will."""

    retryable = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Skip:
    """Why a node has no summary of a model's."""

    cause: str
    #: Failed tries of the node before the last one.
    attempts: int


@dataclass(kw_only=True, slots=True)
class TreeWork:
    """What this worker keeps of a claimed tree, and how far it is."""

    held: Claim
    #: The newest revision's digest.
    digest: bytes
    plan: TreePlan
    log: TreeLog
    #: What is known about the model that is asked.
    facts: ModelFacts
    #: Nodes for which the model failed for good; those that are not stored yet.
    skipped: dict[Planned, Skip] = field(default_factory=dict)
    #: The sampled spans of the nodes that were made last, by the nodes' names.
    spans: dict[str, SpanContext] = field(default_factory=dict)
    #: Whether the memory has no more work.
    is_done: bool = False

    @property
    def spec(self) -> TreeSpec:
        """Returns how the tree is kept."""
        return TreeSpec.of(self.held)

    def skip(self, planned: Planned, cause: str) -> Summary:
        """Returns the stand-in for a summary that the model did not give: the text's beginning."""
        self.skipped[planned] = Skip(cause=cause, attempts=self.held.attempts)
        text = self._text_under(planned)
        short = shortened(text, self.spec.summary_tokens, self.facts.count)
        return Summary(text=short, made=SummarySource.SKIPPED, tokens=self.facts.count(short))

    def _text_under(self, planned: Planned) -> str:
        if planned.cut is not None:
            return planned.cut.text
        return "\n".join(child.summary for child in self.plan.children(planned))

    def place_of(self, planned: Planned) -> tuple[TextOffset, TextOffset]:
        """Returns where the text under a node starts and ends."""
        made = planned.cut or planned.node
        if made is not None:
            return made.start, made.end
        children = self.plan.children(planned)
        return children[0].start, children[-1].end

    def keep_span(self, planned: Planned, span: SpanContext | None) -> None:
        """Keeps what made a node, for its parent and for the commit that stores it."""
        if span is not None:
            self.spans[planned.name] = span
            if len(self.spans) > KEPT_SPANS:
                del self.spans[next(iter(self.spans))]

    def spans_under(self, planned: Planned) -> list[SpanContext]:
        """Returns the spans of a parent's children, those that are kept."""
        names = [f"{child.level}.{child.number}" for child in self.plan.children(planned)]
        return [self.spans[name] for name in names if name in self.spans]

    def move(self, new: NewRevision) -> None:
        """Moves to the next revision, which is `new` and was committed."""
        self.digest = new.digest
        self.held = revisions.advanced(self.held, new)


def check_room(ask: ModelRequest, facts: ModelFacts) -> None:
    """Raises TreeStepTooLarge when a prompt and its reply do not fit into the model's window."""
    free = facts.window_tokens - ask.max_output_tokens - MARGIN_TOKENS
    text = ask.text
    # No token has less than a byte: most prompts need no counting.
    if len(text.encode()) <= free or (tokens := facts.count(text)) <= free:
        return
    raise TreeStepTooLarge(
        Reason.MEMORY_STALLED,
        f"a prompt of {tokens} tokens and a summary of {ask.max_output_tokens} do not fit into"
        f" the model's window of {facts.window_tokens} tokens: the tree needs smaller segments,"
        " summaries or groups, or another model",
    )
