"""Engines of workers, as tests and benchmarks have them."""

from collections.abc import Awaitable, Callable
from typing import Any

from service.app.method_registry import engines_of
from service.domain.spend.prices import ModelPrices
from service.llm.gateway.gateway import Gateway
from service.llm.providers.facts import ModelFacts
from service.settings.config import Config
from service.usecases.memories.step_engine import StepEngine
from service.usecases.memories.step_tools import StepTools
from service.usecases.tree.method import TreeMethod
from storage.engine.database import Database
from tests.support.prices import PLAIN


def step_engine(
    kind: str,
    database: Database,
    calls: Gateway,
    config: Config,
    facts: ModelFacts,
    prices: ModelPrices = PLAIN,
) -> StepEngine[Any]:
    """Returns a worker's engine of memories of this kind, with one model."""
    tools = StepTools(
        database=database,
        gateway=calls,
        facts=lambda _: facts,
        prices=lambda _: prices,
        marker_key=b"marker",
        config=config,
    )
    return engines_of(tools)[kind]


def before_commits(engine: StepEngine[Any], wait: Callable[[], Awaitable[object]]) -> None:
    """Has an engine wait before each revision that it commits."""
    method: Any = engine._method
    owner, name = (method, "_store") if isinstance(method, TreeMethod) else (engine, "_commit")
    commit = getattr(owner, name)

    async def wait_and_commit(*arguments: Any, **named: Any) -> Any:
        await wait()
        return await commit(*arguments, **named)

    setattr(owner, name, wait_and_commit)
