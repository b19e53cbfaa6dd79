"""The prompts of the experiment's agent, and how its replies are read."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from service.domain.log.chunks import Chunk, ChunkKind
from service.domain.prompting.flows import ModelRequest, Purpose, Segment, SegmentKind
from service.domain.prompting.thoughts import spoken

#: Tokens of a reply at most.
REPLY_TOKENS = 256
#: What is kept of a thought or an action.
KEPT_CHARACTERS = 400

#: What a prompt says that asks for a step.
STEP_WANTED = 'begins with "Thought:"'

_STEP = f"""\
You take part in a game that goes on step by step.
[CONTEXT] is all that you have of the game so far, [NOW] is what happens now.
Write two lines: one that {STEP_WANTED} and says in a short sentence how well you know where \
things are, and one that begins with "Action:" with what you do: watch on.

"""
_ANSWER = """\
You took part in a game that went on step by step.
[CONTEXT] is all that you have of it, [QUESTION] is what you are asked about its end.
Answer with one word: the thing alone, or "nothing" for an empty box. When you cannot know, \
answer: unknown

"""
_PART = re.compile(
    r"^[^\w\n]{0,8}(thought|action)[^\w\n:]{0,8}:[ \t*_]{0,8}(.*)$",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A step of the agent."""

    observation: str
    thought: str
    action: str

    @property
    def chunk(self) -> Chunk:
        """Returns the step as a chunk: the game shows what happens before the model acts."""
        return Chunk(
            kind=ChunkKind.STEP,
            observation=self.observation,
            thought=self.thought,
            action=self.action,
            observed_first=True,
        )

    @property
    def text(self) -> str:
        """As a model reads it."""
        return self.chunk.as_text()


def step_ask(context: Sequence[str], observation: str) -> ModelRequest:
    """Asks for the thought and the action of a step."""
    return _ask("step", _STEP, context, f"[NOW]\n{observation}\n")


def answer_ask(context: Sequence[str], question: str) -> ModelRequest:
    """Asks the question at the end."""
    return _ask("answer", _ANSWER, context, f"[QUESTION]\n{question}\n")


def _ask(name: str, instructions: str, context: Sequence[str], last: str) -> ModelRequest:
    held = "\n".join(context)
    return ModelRequest(
        purpose=Purpose.ANSWER,
        template=f"reliability.{name}/1",
        segments=(
            Segment(kind=SegmentKind.TASK, text=instructions),
            Segment(kind=SegmentKind.CHUNK, text=f"[CONTEXT]\n{held}\n", reusable=False),
            Segment(kind=SegmentKind.QUERY, text=last, reusable=False),
        ),
        max_output_tokens=REPLY_TOKENS,
    )


def read_step(reply: str, observation: str) -> Step:
    """Returns the step that a reply makes of an observation; what it says besides is not kept."""
    parts = {name.lower(): text.strip() for name, text in _PART.findall(spoken(reply))}
    return Step(
        observation=observation,
        thought=parts.get("thought", "")[:KEPT_CHARACTERS],
        action=parts.get("action", "")[:KEPT_CHARACTERS],
    )
