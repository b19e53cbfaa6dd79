"""A memory is filled past its limit of bytes by a model that never makes it shorter."""

import json

import palimpsest
from tests.support.fake_model import fake_model
from tests.support.harness import api, worker
from verification.attacks.attack import Attack, Outcome, Stage

SCHEMA = "class N:\n    topics: dict[str, str]\n"
#: Bytes that a memory may have, and of each fact.
LIMIT = 4000
FACT = 400


async def _run(stage: Stage) -> Outcome:
    chunks = 20 if stage.short else 400
    url = stage.servers.new_database()
    with fake_model() as model:
        # A consolidation takes no additions: this model cannot make anything shorter.
        model.reply = lambda n: (
            "[OBJECTS FOR ADD]\n" + json.dumps({f"$.topics.t{n}": {"add": "x" * FACT}})
        )
        settings = {**model.settings, "PALIMPSEST_LIMIT_MAX_MEMORY_BYTES": str(LIMIT)}
        with api(url, **settings) as (_, address), worker(url, **settings):
            async with palimpsest.connect(address) as client:
                session = await client.create_session("s")
                memory = await session.create_memory("m", SCHEMA, chunk_tokens=1)
                async with session.producer("p") as producer:
                    for number in range(chunks):
                        await producer.append(f"fact {number}")
                    ack = await producer.flush()
                assert ack is not None, "something was appended"
                state = await memory.get(after=ack.read_token, timeout=600)
                kinds = [one.kind async for one in memory.revisions()]
                lost = chunks - len(state.value["topics"])
    told = sum(loss.count for loss in state.info.losses if loss.kind == "no_room")
    consolidations = kinds.count("consolidation")
    before = kinds[: kinds.index("consolidation")] if consolidations else kinds
    half = before.count("step") * FACT / LIMIT
    return Outcome(
        held=0 < lost == told and consolidations <= 12 and half < 0.75,
        found=f"{lost} of {chunks} facts found no room and {told} are told with the read;"
        f" {consolidations} consolidations, the first at {half:.0%} of the limit",
    )


ATTACK = Attack(
    name="full_memory",
    finding="issue 18, 10",
    summary="fills a memory past its limit of bytes, with a model that makes nothing shorter",
    goal="each fact that finds no room is told with the read; consolidations begin long before"
    " the limit and end when they do not help",
    before="facts were rejected while the memory was active and reads succeeded without a word",
    run=_run,
)
