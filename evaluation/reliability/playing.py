"""How a game is played: a context, a reply and a step after the other, then the question."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from evaluation.baselines.texts import ending
from evaluation.measures import exact_match
from evaluation.reliability.prompts import Step, answer_ask, read_step, step_ask
from evaluation.reliability.tasks import Task
from service.domain.prompting.flows import ModelReply, ModelRequest
from service.domain.prompting.thoughts import spoken


class Failed(Exception):
    """A game cannot be played to its end; one sentence says why."""


class GameModel(Protocol):
    """The model, as a game asks it."""

    #: Tokens of a prompt and its reply together that the model takes.
    window_tokens: int
    #: Derives the marks about texts in prompts.
    marker_key: bytes

    async def ask(self, ask: ModelRequest) -> ModelReply:
        """Returns the reply. Raises Failed."""
        ...

    def count(self, text: str) -> int:
        """Tokens of a text."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """Model calls; each 0 or more."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Returns the tokens of prompts and replies."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            calls=self.calls + other.calls,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
        )


class ContextStrategy(Protocol):
    """What keeps a game's history for the agent: a strategy, in one game."""

    async def context(self, wanted: str) -> Sequence[str]:
        """Returns what the agent reads before a step, in pieces, the newest last. Raises Failed.

        `wanted` is what happens now, or the question.
        """
        ...

    async def record(self, step: Step) -> None:
        """Takes the next step. Raises Failed."""
        ...

    async def spent(self) -> Spent:
        """Returns the usage of model calls for keeping so far. Raises Failed."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """A game that was played to its end."""

    answer: str
    is_right: bool
    #: What the agent's own calls cost: contexts with what is seen, and replies.
    acting: Spent
    #: What the calls that keep the history cost.
    keeping: Spent
    #: Tokens of the longest context.
    longest: int


def fit(pieces: Sequence[str], window_tokens: int, count: Callable[[str], int]) -> list[str]:
    """Returns the newest pieces that fit together; the last one may itself be cut on the left."""
    taken: list[str] = []
    room = window_tokens
    for piece in reversed(pieces):
        size = count(piece)
        if size > room:
            break
        taken.append(piece)
        room -= size
    if pieces and not taken:
        return [ending(pieces[-1], window_tokens, count).text]
    return taken[::-1]


class Game:
    """A task, played with a context strategy."""

    def __init__(
        self,
        task: Task,
        context_strategy: ContextStrategy,
        game_model: GameModel,
        *,
        window_tokens: int,
    ) -> None:
        self._task = task
        self._context_strategy = context_strategy
        self._game_model = game_model
        self._window_tokens = window_tokens
        self._acting = Spent()
        self._longest = 0

    async def play(self) -> Played:
        """Plays to the end. Raises Failed."""
        for observation in self._task.observations:
            reply = await self._ask(step_ask(await self._context(observation), observation))
            await self._context_strategy.record(read_step(reply.text, observation))
        question = self._task.question
        reply = await self._ask(answer_ask(await self._context(question), question))
        answer = spoken(reply.text).strip()
        return Played(
            answer=answer,
            is_right=exact_match(answer, self._task.gold) == 1.0,
            acting=self._acting,
            keeping=await self._context_strategy.spent(),
            longest=self._longest,
        )

    async def _context(self, wanted: str) -> Sequence[str]:
        count = self._game_model.count
        pieces = fit(await self._context_strategy.context(wanted), self._window_tokens, count)
        self._longest = max(self._longest, sum(count(piece) for piece in pieces))
        return pieces

    async def _ask(self, ask: ModelRequest) -> ModelReply:
        reply = await self._game_model.ask(ask)
        self._acting += spent_on(reply)
        return reply


def spent_on(reply: ModelReply) -> Spent:
    """Returns the usage of one call."""
    return Spent(calls=1, input_tokens=reply.input_tokens, output_tokens=reply.output_tokens)
