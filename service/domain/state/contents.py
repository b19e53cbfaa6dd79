"""What a state memory's prompts say, as values: for models that are not language models."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressStepsContent:
    """A state vector and the steps since, to be made the next state vector."""

    #: M; empty where there was neither a vector nor a task prompt.
    current: str
    #: Whether `current` is the task prompt, M_1.
    current_is_task: bool
    #: Their positions and texts, in the order of the log; one or more. A step that is
    #: larger than the window comes in pieces, which have the same position.
    steps: tuple[tuple[int, str], ...]
    #: Strings that the reply has word for word.
    pinned: tuple[str, ...]
    #: Tokens of the reply at most; 1 or more.
    max_tokens: int
    #: The last reply, where that was too long; empty the first time.
    too_long: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressVectorsContent:
    """Consecutive vectors of a level, to be made the next vector of the level above."""

    #: The newest vector of the level above; empty where there is none.
    above: str
    #: Their texts, the oldest first; one or more.
    vectors: tuple[str, ...]
    #: As in `CompressStepsContent`.
    pinned: tuple[str, ...]
    max_tokens: int
    too_long: str = ""
