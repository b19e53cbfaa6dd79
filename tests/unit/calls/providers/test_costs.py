"""What each way to end costs: as its provider counts, whether there is a reply in it or not."""

import pytest

from service.llm.providers.plans import CallPlan
from service.llm.providers.prices import Prices
from service.llm.providers.transport import Completion, LitellmTransport
from tests.providers.anthropic import Anthropic
from tests.providers.openrouter import COST_USD
from tests.providers.provider import KEY, Provider
from tests.providers.scenarios import Scenario, Turn
from tests.providers.server import PROVIDERS, REPLY, Emulators
from tests.unit.calls.providers.test_emulators import ASK, BOTH, STREAMED, turns

#: Dollars for a token, as dollars for a million: what is read, and what is written.
READ, WRITTEN = 1.0, 5.0
#: Replies: an error is not billed, and yields no completion.
ENDS = [
    pytest.param(name, turn, how, id=f"{name}-{turn.native or turn.scenario.value}-{how}")
    for name in PROVIDERS
    for turn in turns(name)
    for how in BOTH
    if turn.scenario in PROVIDERS[name].finish or turn.scenario is Scenario.ODD_END
    # A 400, of which litellm makes a reply. Its usage is not reported, but estimated.
    if turn.native != "could not finish"
    # It says how much it read, which is not all that it was sent.
    if (name, turn.scenario) != ("ollama", Scenario.TOO_LONG)
]


def written(provider: Provider, turn: Turn) -> int:
    """Tokens that the provider counts."""
    count = provider.said(turn, REPLY).output_tokens
    return max(count, 1) if isinstance(provider, Anthropic) else count


@pytest.fixture(scope="module")
def transports(servers: Emulators) -> dict[str, LitellmTransport]:
    price = {"input_usd_per_million": READ, "output": WRITTEN}
    return {
        name: LitellmTransport(
            servers.endpoint(name).config(model_prices={PROVIDERS[name].model: price})
        )
        for name in servers
    }


@pytest.mark.parametrize(("name", "turn", "how"), ENDS)
async def test_every_end_is_billed_as_the_provider_counts(
    servers: Emulators, transports: dict[str, LitellmTransport], name: str, turn: Turn, how: str
) -> None:
    end = servers.endpoint(name)
    servers[name].script = [turn]
    plan = CallPlan(
        deployment=end.deployment, on_text=(lambda _: None) if how == STREAMED else None
    )
    done = await transports[name].complete(ASK, end.model, plan)
    read, wrote = len(ASK.text.split()), written(servers[name].provider, turn)
    assert (done.input_tokens, done.output_tokens) == (read, wrote)
    assert done.cost_micro_usd == round(read * READ + wrote * WRITTEN)
    assert (done.reasoning_tokens or 0) <= wrote


async def made(servers: Emulators, name: str, **more: object) -> Completion:
    end = servers.endpoint(name)
    calls = LitellmTransport(end.config(**more))
    return await calls.complete(ASK, end.model, CallPlan(deployment=end.deployment))


@pytest.mark.parametrize("name", ["azure", "vllm"])
async def test_a_deployments_unknown_model_is_not_free(servers: Emulators, name: str) -> None:
    assert (await made(servers, name)).cost_micro_usd is None


async def test_openrouters_own_sum_counts(servers: Emulators) -> None:
    assert (await made(servers, "openrouter")).cost_micro_usd == round(COST_USD * 1e6)


async def test_azure_costs_what_openai_does(servers: Emulators) -> None:
    place = {
        "name": "ours",
        "model": "openai/gpt-4.1-mini",
        "litellm_model": "azure/our-mini",
        **servers.endpoint("azure").fields,
        "api_base": servers.endpoint("azure").api_base,
        "api_key": KEY,
    }
    config = servers.endpoint("azure").config(deployments=[place], model=place["model"])
    calls = LitellmTransport(config)
    done = await calls.complete(ASK, place["model"], CallPlan(deployment="ours"))
    listed = Prices(config).of("openai/gpt-4.1-mini")
    assert listed.input_usd is not None
    read, wrote = len(ASK.text.split()), len(REPLY.split())
    assert done.cost_micro_usd == round((read + wrote * listed.output) * listed.input_usd * 1e6)
