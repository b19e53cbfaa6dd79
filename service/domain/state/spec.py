"""The spec of a state memory: when steps are compressed, and into what."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from service.domain.prompting.tokens import estimate_tokens
from service.domain.tree.spec import TreeSpec
from service.domain.values.errors import InvalidInput
from service.domain.values.memory_specs import MemorySpec, ReaderName, ReplyFormat, Way
from service.domain.values.reasons import Reason


class Period(StrEnum):
    """What the number of steps between two compressions goes by."""

    #: Always N (section 3.1).
    FIXED = "fixed"
    #: Sooner when the steps are long and new, later when they repeat what is known; between
    #: a quarter of N and ADAPTIVE_SPAN times N.
    ADAPTIVE = "adaptive"


#: `period_tokens` of a new memory that does not say: on recorded agent runs it makes hardly
#: more compressions than none does (decision 0048), and it bounds steps that are long.
DEFAULT_PERIOD_TOKENS = 4000
#: What of a state vector pinned strings may take at most: the rest is for the state.
PINNED_SHARE = 1 / 2
#: Periods of N steps that an adaptive memory waits at most; as many parts of N at least.
ADAPTIVE_SPAN = 4
#: What a tree's summaries have at most, in tokens.
MAX_SUMMARY_TOKENS = 8000


@dataclass(frozen=True, kw_only=True, slots=True)
class StateSpec(MemorySpec):
    """How state vectors are kept. SKIP: what cannot be compressed is stood for by its beginning."""

    kind = "state"
    ways: ClassVar = {Way.CONTEXT: ReaderName.PCC, Way.LEVELS: ReaderName.MEMWALKER}
    has_whole_log = True
    has_states = True
    parsers: ClassVar = {
        **MemorySpec.parsers,
        "period_kind": Period,
        "pinned": tuple,
        "reply_format": ReplyFormat,
    }

    #: The task prompt, P_0 in algorithm 1: the first state vector, M_1. It may be empty.
    task: str = ""
    #: N: steps that one compression takes; 1 to 1,000.
    period: int = 10
    period_kind: Period = Period.FIXED
    #: Steps that are not compressed have at most so many tokens together: those before one
    #: that would pass it are compressed without it. One that is longer is compressed alone.
    #: 0: never for that, as memories have it too that are older than the default.
    period_tokens: int = 0
    #: Steps are also compressed when none has come for so long, in ms; 0: never for that.
    idle_ms: int = 0
    #: Tokens of a state vector at most; 32 to 32,000.
    state_tokens: int = 500
    #: Strings that every state vector has word for word.
    pinned: tuple[str, ...] = ()
    #: K: vectors that are compressed into one of the next level; 2 to 64, 0: no episodes.
    episode_vectors: int = 0
    #: How a model writes its moves when it navigates the levels.
    reply_format: ReplyFormat = ReplyFormat.AUTO

    @property
    def max_period(self) -> int:
        """Steps that one compression takes at most."""
        return self.period * (ADAPTIVE_SPAN if self.period_kind is Period.ADAPTIVE else 1)

    def check(self, *, backlog_chunks: int) -> None:
        """Raises InvalidInput for what does not fit together.

        `backlog_chunks`: chunks that a session may have ahead of its memories.
        """
        pinned = estimate_tokens("\n".join(self.pinned))
        most = int(self.state_tokens * PINNED_SHARE)
        if pinned > most:
            raise _refused(
                "pinned",
                f"the pinned strings have {pinned} tokens; at most {most}, half of state_tokens,"
                " are for them",
            )
        if self.max_period >= backlog_chunks:
            raise _refused(
                "period",
                f"a compression would wait for {self.max_period} steps, and producers are"
                f" stopped when a memory is {backlog_chunks} chunks behind",
            )

    def as_tree(self) -> TreeSpec:
        """Returns how its levels are navigated, as a tree that says nothing of it is."""
        return TreeSpec(
            summary_tokens=min(self.state_tokens, MAX_SUMMARY_TOKENS),
            model=self.model,
            reply_format=self.reply_format,
        )


def _refused(field: str, message: str) -> InvalidInput:
    return InvalidInput(Reason.FIELD_INVALID, message, {}, field=f"state.{field}")
