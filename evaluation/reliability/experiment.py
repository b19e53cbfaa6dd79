"""The experiment: every task with every strategy, several at once."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import palimpsest
from evaluation.reliability.context_strategies import FullHistory, Recursive, Retrieval
from evaluation.reliability.game_models import ScriptedGameModel
from evaluation.reliability.outcomes import GameResult
from evaluation.reliability.pcc import keeping
from evaluation.reliability.playing import ContextStrategy, Failed, Game, GameModel
from evaluation.reliability.scripted import ScriptedModel
from evaluation.reliability.tasks import Task

if TYPE_CHECKING:
    # It imports the whole service, which `--help` need not wait for.
    from service.app.gateways import ModelAccess

FULL_HISTORY = "full-history"
RECURSIVE = "recursive"
RETRIEVAL = "retrieval"
#: What is compared where nothing else is said, in the order in which it is shown.
STRATEGIES = (FULL_HISTORY, RECURSIVE, RETRIEVAL, "pcc-10", "pcc-20")
#: Steps between two compressions at most, as state memories have it.
MAX_PERIOD = 1000
_PCC = re.compile(r"pcc-([1-9]\d{0,3})")


def period_of(strategy: str) -> int | None:
    """Returns N of a strategy pcc-N; None for other strategies. Raises ValueError for none."""
    if strategy in (FULL_HISTORY, RECURSIVE, RETRIEVAL):
        return None
    found = _PCC.fullmatch(strategy)
    if found is None or int(found[1]) > MAX_PERIOD:
        raise ValueError(
            f"there is no strategy {strategy!r}; there are {FULL_HISTORY}, {RECURSIVE},"
            f" {RETRIEVAL} and pcc-N with N from 1 to {MAX_PERIOD}"
        )
    return int(found[1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How games are played."""

    #: Tokens of a context at most.
    window_tokens: int
    #: Tokens of a summary, and of a state vector, at most.
    state_tokens: int
    #: Pieces that retrieval takes at most.
    retrieved: int
    #: Games at the same time.
    concurrency: int
    #: Seconds that a compression may take.
    timeout_seconds: float


class Experiment:
    """Plays games; the service keeps those of PCC."""

    def __init__(
        self,
        client: palimpsest.Client | None,
        settings: Settings,
        *,
        run_id: str,
        scripted: ScriptedModel | None,
        access: "ModelAccess | None",
        model: str,
        on_result: Callable[[GameResult], None],
    ) -> None:
        """Games are played by `scripted`, or else by `model`, through `access`.

        The client is for PCC and for a model that is called through `access`.
        """
        assert (scripted is None) != (access is None), "one of them plays"
        self._client = client
        self._settings = settings
        self._run_id = run_id
        self._scripted = scripted
        self._access = access
        self._model = model
        self._on_result = on_result
        self._slots = asyncio.Semaphore(settings.concurrency)

    async def run(self, strategies: Sequence[str], tasks: Sequence[Task]) -> None:
        """Plays every task with every strategy; failures are results."""
        async with asyncio.TaskGroup() as group:
            for strategy in strategies:
                for task in tasks:
                    group.create_task(self._play(strategy, task))

    async def _play(self, strategy: str, task: Task) -> None:
        async with self._slots:
            began = time.monotonic()
            result = GameResult(
                strategy=strategy, length=task.length, number=task.number, gold=task.gold
            )
            try:
                async with self._game(strategy, task) as game:
                    played = await game.play()
            except Failed as error:
                result = replace(result, failure=str(error))
            else:
                result = replace(
                    result,
                    answer=played.answer,
                    is_right=played.is_right,
                    acting=played.acting,
                    keeping=played.keeping,
                    longest=played.longest,
                )
            result = replace(result, seconds=time.monotonic() - began)
        self._on_result(result)

    @contextlib.asynccontextmanager
    async def _game(self, strategy: str, task: Task) -> AsyncIterator[Game]:
        session = f"reliability:{self._run_id}:{strategy}:{task.length}-{task.number}"
        game_model = await self._game_model(session)
        async with self._context_strategy(strategy, task, session, game_model) as context_strategy:
            yield Game(
                task, context_strategy, game_model, window_tokens=self._settings.window_tokens
            )

    async def _game_model(self, session: str) -> GameModel:
        if self._scripted is not None:
            return ScriptedGameModel(self._scripted)
        assert self._access is not None, "one of them plays"
        assert self._client is not None, "model access needs a service"
        try:
            # The ledger's lines belong to a session.
            await self._client.create_session(session, exist_ok=True, default_memory=False)
        except palimpsest.PalimpsestError as error:
            raise Failed(str(error)) from error
        # It takes a second to import, and the command line has all of its commands at hand.
        from evaluation.reliability.gateway_game_model import GatewayGameModel

        return GatewayGameModel(self._access, model=self._model, session=session)

    @contextlib.asynccontextmanager
    async def _context_strategy(
        self, strategy: str, task: Task, session: str, game_model: GameModel
    ) -> AsyncIterator[ContextStrategy]:
        settings = self._settings
        period = period_of(strategy)
        if period is not None:
            assert self._client is not None, "state memories have a service"
            async with keeping(
                self._client,
                session,
                task=task.prompt,
                period=period,
                state_tokens=settings.state_tokens,
                timeout_seconds=settings.timeout_seconds,
            ) as context_strategy:
                yield context_strategy
        elif strategy == RECURSIVE:
            yield Recursive(task.prompt, state_tokens=settings.state_tokens, game_model=game_model)
        elif strategy == RETRIEVAL:
            yield Retrieval(
                task.prompt,
                pieces=settings.retrieved,
                window_tokens=settings.window_tokens,
                game_model=game_model,
            )
        else:
            yield FullHistory(task.prompt)
