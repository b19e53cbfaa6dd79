"""`python -m tests.trace`: the trace of one chunk in a real run, as in docs/reference/tracing.md.

An API server, a worker and its executor, PostgreSQL, and a model that is faked at its transport.
"""

import asyncio

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanContext

import palimpsest
from tests.acceptance.memories.kept_memory import SCHEMA, scripted
from tests.support.fake_model import fake_model
from tests.support.harness import Servers, api, worker
from tests.support.otlp import collector, rendered

CLIENT = TracerProvider().get_tracer("client")


async def run(address: str) -> SpanContext:
    """Appends one chunk within a span, and watches what becomes of it."""
    async with palimpsest.connect(address) as client:
        session = await client.create_session("s")
        memory = await session.create_memory("m", schema_source=SCHEMA, encoding="amendments")
        # What is done for the first time takes longer.
        first = await session.append("A first chunk.")
        await memory.get(after=first.read_token, timeout=200)
        with CLIENT.start_as_current_span("appending") as span:
            async with memory.watch() as watch:
                await session.append("A second chunk.")
                async for event in watch:
                    if event.revision.positions is not None:
                        break
        return span.get_span_context()


def main() -> None:
    """Prints it."""
    with Servers.started() as servers, fake_model() as model, collector() as taking:
        url = servers.new_database()
        settings = {**scripted(model), **servers.redis_settings(), **taking.environment}
        with api(url, **taking.environment) as (server, address), worker(url, **settings) as works:
            trace_id = f"{asyncio.run(run(address)).trace_id:032x}"
            taking.wait("the step", lambda all: all.named("process prism", trace_id))
            # What is left is sent by those that stop.
            server.stop()
            works.stop()
        print(rendered([one for one in taking.spans if one.trace_id == trace_id]))


if __name__ == "__main__":
    main()
