"""litellm, imported once: late, since that takes seconds, and with its own ways switched off.

It knows every provider's protocol, usage fields, prices and windows. Its own retries,
caches and callbacks stay off: those are ours.
"""

import importlib
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from service.llm.providers.native import heard


@lru_cache(maxsize=1)
def litellm_library() -> Any:
    """The module. Takes seconds the first time."""
    # Nothing is fetched: neither the price list nor a tokenizer.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    litellm: Any = importlib.import_module("litellm")
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    # On, a parameter that a server refuses is dropped and the call made again unseen:
    # a retry that is not ours, with another meaning than the ledger's key says.
    litellm.drop_params = False
    # For vectors it takes our 0 for nothing said, and this number in its place.
    litellm.DEFAULT_MAX_RETRIES = 0
    # Of a stream litellm gives up on a model that repeats itself, and not of a reply in one
    # piece. Each has its bound of tokens.
    litellm.REPEATED_STREAMING_CHUNK_LIMIT = sys.maxsize
    # What each reply costs is looked up by us, once; a tenth of the time that a call takes
    # here would go into looking it up for litellm's own records.
    litellm.response_cost_calculator = _no_cost
    # We report each failure ourselves. Theirs hold what a provider answered, with texts, and of an
    # Azure deployment an error for each call that is none.
    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
    _hear_answers()
    return litellm


def _hear_answers() -> None:
    """Lets every client of litellm's that is made from now on be heard
    (`service.llm.providers.native`).
    """
    handler: Any = importlib.import_module("litellm.llms.custom_httpx.http_handler")
    clients = handler.AsyncHTTPHandler
    create = clients.create_async_transport

    def create_async_transport(*args: Any, **kwargs: Any) -> Any:
        transport = create(*args, **kwargs)
        # None where the environment asks for httpx's own.
        if transport is not None:
            transport.handle_async_request = heard(transport.handle_async_request)
        return transport

    clients.create_async_transport = staticmethod(create_async_transport)


def hears_answers() -> bool:
    """Whether answers are heard, as always unless the environment asks for httpx's own clients."""
    handler: Any = importlib.import_module("litellm.llms.custom_httpx.http_handler")
    heard_there: bool = handler.AsyncHTTPHandler.should_use_aiohttp_transport()
    return heard_there


def _no_cost(**_: object) -> None:
    """In place of litellm's price of a reply."""


@contextmanager
def unrecorded() -> Iterator[None]:
    """Keeps litellm from recording a call for its callbacks: nothing reads the record."""
    context: Any = importlib.import_module("litellm._internal_context")
    token = context.is_internal_call.set(True)
    try:
        yield
    finally:
        context.is_internal_call.reset(token)
