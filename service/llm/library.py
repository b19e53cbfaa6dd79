"""litellm, imported once: late, since that takes seconds, and with its own ways switched off.

It knows every provider's protocol, usage fields, prices and windows. Its own retries,
caches and callbacks stay off: those are ours.
"""

import importlib
import os
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1)
def litellm_library() -> Any:
    """The module, with the offline model among its providers. Takes seconds the first time."""
    # Nothing is fetched: neither the price list nor anybody's tokenizer.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    litellm: Any = importlib.import_module("litellm")
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    # On, a parameter that a server refuses is dropped and the call made again unseen:
    # a retry that is not ours, with another meaning than the journal's key says.
    litellm.drop_params = False
    from service.llm.offline_provider import register

    register(litellm)
    return litellm
