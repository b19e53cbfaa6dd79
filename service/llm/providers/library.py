"""Imports litellm: late, since that takes seconds, and with its retries, caches and callbacks off.

It knows every provider's protocol, usage fields, prices and windows.
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
    """Returns the module. Takes seconds the first time."""
    # It must not download the price list or a tokenizer.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    litellm: Any = importlib.import_module("litellm")
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    # Otherwise it drops a parameter that a server refuses and silently repeats the call, which
    # then differs from the ledger's key.
    litellm.drop_params = False
    # For vectors it takes our 0 as unset, and uses this number.
    litellm.DEFAULT_MAX_RETRIES = 0
    # It aborts streams, but not whole replies, that repeat themselves. Both have a bound of tokens.
    litellm.REPEATED_STREAMING_CHUNK_LIMIT = sys.maxsize
    # We look up the cost of a reply; for litellm's own records that takes a tenth of a call's time
    # here.
    litellm.response_cost_calculator = lambda **_: None
    # We log failures ourselves. litellm's messages contain answers with texts, and an error for
    # each successful call to Azure.
    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
    _hear_answers()
    return litellm


def _hear_answers() -> None:
    """Lets `service.llm.providers.native` hear every client that litellm makes from now on."""
    handler: Any = importlib.import_module("litellm.llms.custom_httpx.http_handler")
    clients = handler.AsyncHTTPHandler
    create = clients.create_async_transport

    def create_async_transport(*args: Any, **kwargs: Any) -> Any:
        transport = create(*args, **kwargs)
        # None if the environment asks for httpx's own.
        if transport is not None:
            transport.handle_async_request = heard(transport.handle_async_request)
        return transport

    clients.create_async_transport = staticmethod(create_async_transport)


def hears_answers() -> bool:
    """Returns whether answers are heard: unless the environment asks for httpx's own clients."""
    handler: Any = importlib.import_module("litellm.llms.custom_httpx.http_handler")
    heard_there: bool = handler.AsyncHTTPHandler.should_use_aiohttp_transport()
    return heard_there


@contextmanager
def unrecorded() -> Iterator[None]:
    """Keeps litellm from recording a call for its callbacks, as there are none."""
    context: Any = importlib.import_module("litellm._internal_context")
    token = context.is_internal_call.set(True)
    try:
        yield
    finally:
        context.is_internal_call.reset(token)
