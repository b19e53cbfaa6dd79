"""State vectors that a real engine writes: within their size, with what is pinned.

Needs `make setup-local`. Nothing is asserted of what the small model says.
"""

import pytest
from pydantic import SecretStr

from service.domain.prompting.tokens import estimate_tokens
from service.domain.state.spec import StateSpec
from service.domain.state.vectors import VectorSource
from service.domain.values.tenancy import DEFAULT_TENANT
from service.llm.providers.facts import ModelFacts
from service.llm.providers.transport import LitellmTransport
from service.settings.config import Config
from storage.engine.database import Database
from tests.integration.support.ledger_sums import usage_of_session
from tests.integration.support.scripted import ITEM, KEY, MEMORY, make
from tests.integration.support.stepping import all_vectors
from tests.support.engine import KEY as ENGINE_KEY
from tests.support.engine import engine, installed
from tests.support.gateways import gateway
from tests.support.harness import Servers
from tests.support.step_engines import step_engine

pytestmark = [
    pytest.mark.prove,
    pytest.mark.skipif(not installed(), reason="the engine is not installed: make setup-local"),
    # Replies of a hundred tokens and more, a few tokens a second on a busy machine.
    pytest.mark.timeout(600),
]
TIMEOUT_SECONDS = 300.0
PINNED = "Locker 1417"
SPEC = StateSpec(
    task=f"Find the lamp of the lighthouse. {PINNED} is yours.",
    period=2,
    state_tokens=64,
    pinned=(PINNED,),
    model="openai/smollm2",
)
STEPS = ["The door of the tower is open.", "The lamp is not there. The keeper has it."]
#: Of prompt and reply: a rambling reply ends early.
WINDOW_TOKENS = 1100


async def test_a_real_model_keeps_a_state_within_its_size(servers: Servers) -> None:
    database = Database.connect(servers.new_database(), pool_size=4, name="test")
    try:
        with engine() as server:
            config = Config(
                model_base_url=f"{server.url}/v1",
                model_api_key=SecretStr(ENGINE_KEY),
                drain_seconds=3600,
                model_timeout_seconds=TIMEOUT_SECONDS,
            )
            model = LitellmTransport(config)
            facts = ModelFacts(window_tokens=WINDOW_TOKENS, count=estimate_tokens)
            calls = gateway(model, database, lease_seconds=60.0, config=config)
            worker = step_engine(StateSpec.kind, database, calls, config, facts)
            await make(database, STEPS, SPEC)
            assert await worker.drain(ITEM) is None
            evaluated = server.evaluated_tokens()
        async with database.transaction(DEFAULT_TENANT) as tx:
            made = await all_vectors(tx, (KEY, MEMORY))
            (usage,) = await usage_of_session(tx, KEY)
    finally:
        await database.close()
    (vector,) = made
    assert (vector.from_position, vector.to_position) == (0, len(STEPS))
    assert vector.made in (VectorSource.MODEL, VectorSource.CUT)
    assert PINNED in vector.text
    assert 0 < vector.tokens <= SPEC.state_tokens
    assert vector.tokens == estimate_tokens(vector.text)
    assert usage.calls == vector.replies
    assert 0 < evaluated <= usage.input_tokens
