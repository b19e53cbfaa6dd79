"""The strategies to compare PCC with: each keeps a game's history in its own way."""

import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from evaluation.reliability.playing import Failed, GameModel, Spent, spent_on
from evaluation.reliability.prompts import Step
from service.domain.log.chunks import LoggedChunk
from service.domain.prompting.asking import NoUse
from service.domain.prompting.flows import ModelReply, ModelRequest
from service.domain.search.ranking import Ranking
from service.domain.state.compressing import CompressionTooLarge, compress_steps
from service.domain.state.spec import StateSpec
from service.domain.state.triggers import SizedStep
from service.llm.gateway.driver import drive
from service.llm.splitter import first_piece

_WORD = re.compile(r"\w+")


class FullHistory:
    """Everything so far; the window cuts the beginning off."""

    def __init__(self, prompt: str) -> None:
        self._pieces = [prompt]

    async def context(self, wanted: str) -> Sequence[str]:
        """Returns the task and all steps."""
        return self._pieces

    async def record(self, step: Step) -> None:
        """Keeps the step as it is."""
        self._pieces.append(step.text)

    async def spent(self) -> Spent:
        """Nothing."""
        return Spent()


class Retrieval(FullHistory):
    """Returns the pieces so far whose words fit best, in their order."""

    def __init__(
        self, prompt: str, *, pieces: int, window_tokens: int, game_model: GameModel
    ) -> None:
        super().__init__(prompt)
        self._most = pieces
        self._window_tokens = window_tokens
        self._count = game_model.count
        # The words of each piece, and the pieces of each word: a game asks at every step.
        self._words: list[Counter[str]] = []
        self._holders = Counter[str]()
        self._index(prompt)

    async def context(self, wanted: str) -> Sequence[str]:
        """Returns the best by BM25, as many as may be and as the window holds."""
        chosen: list[int] = []
        room = self._window_tokens
        for number in self._ranked(sorted(set(_words(wanted))))[: self._most]:
            room -= self._count(self._pieces[number])
            if room < 0:
                break
            chosen.append(number)
        return [self._pieces[number] for number in sorted(chosen)]

    async def record(self, step: Step) -> None:
        """Keeps the step as it is."""
        await super().record(step)
        self._index(step.text)

    def _index(self, text: str) -> None:
        words = Counter(_words(text))
        self._words.append(words)
        self._holders.update(words.keys())

    def _ranked(self, wanted: Sequence[str]) -> list[int]:
        """Numbers of the pieces, best first; the earlier one wins a tie."""
        sizes = [words.total() for words in self._words]
        ranking = Ranking(
            texts=len(sizes),
            tokens=sum(sizes),
            holders={word: self._holders[word] for word in wanted},
        )
        # In one order: sums of floats depend on it.
        scores = [
            ranking.score({word: words[word] for word in wanted if word in words}, size)
            for words, size in zip(self._words, sizes, strict=True)
        ]
        return sorted(range(len(scores)), key=lambda number: (-scores[number], number))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


class Recursive:
    """A summary that is written anew after every step, from the one before and the step.

    It is asked for with the prompts of state memories: only how often is another thing.
    """

    def __init__(self, prompt: str, *, state_tokens: int, game_model: GameModel) -> None:
        self._notes = prompt
        self._spec = StateSpec(task=prompt, period=1, state_tokens=state_tokens)
        self._game_model = game_model
        self._steps = 0
        self._spent = Spent()

    async def context(self, wanted: str) -> Sequence[str]:
        """Returns the summary; before the first step the task."""
        return [self._notes]

    async def record(self, step: Step) -> None:
        """Has the summary written again. Raises Failed."""
        self._steps += 1
        flow = compress_steps(
            self._notes,
            [self._sized(step)],
            spec=self._spec,
            marker_key=self._game_model.marker_key,
            count=self._game_model.count,
            window_tokens=self._game_model.window_tokens,
            cut=first_piece,
        )
        try:
            self._notes = (await drive(flow, self._ask)).text
        except (NoUse, CompressionTooLarge) as error:
            raise Failed(str(error)) from error

    async def spent(self) -> Spent:
        """Returns the usage of all summaries."""
        return self._spent

    def _sized(self, step: Step) -> SizedStep:
        logged = LoggedChunk(
            position=self._steps,
            chunk=step.chunk,
            producer_id="agent",
            producer_sequence=self._steps,
            # It is in no log, and nothing goes by its time.
            created_at=datetime.fromtimestamp(0, UTC),
        )
        return SizedStep.of(logged)

    async def _ask(self, ask: ModelRequest) -> ModelReply:
        reply = await self._game_model.ask(ask)
        self._spent += spent_on(reply)
        return reply
