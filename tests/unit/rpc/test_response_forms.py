"""The form that a question asks for is checked beside the event loop, not on it."""

import asyncio
import threading
from typing import Any

import pytest

from palimpsest.v1 import answer_service_pb2
from service.domain.values.errors import InvalidInput
from service.rpc import answer_service
from service.settings.config import Limits

ASKED = answer_service_pb2.AskRequest(session="s", query="q", response_schema='{"type": "string"}')


async def test_others_go_on_while_a_response_schema_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, others_went_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def check(text: str) -> dict[str, Any]:
        loop.call_soon_threadsafe(begun.set)
        # On the loop itself it would never be set.
        return {"others_went_on": others_went_on.wait(20)}

    monkeypatch.setattr(answer_service, "check_response_schema", check)
    asking = asyncio.create_task(answer_service.question_of(ASKED, Limits()))
    await begun.wait()
    others_went_on.set()
    assert (await asking).response_schema == {"others_went_on": True}


async def test_a_question_without_a_form_has_none_and_a_wrong_form_is_refused() -> None:
    plain = answer_service_pb2.AskRequest(session="s", query="q")
    assert (await answer_service.question_of(plain, Limits())).response_schema is None
    assert (await answer_service.question_of(ASKED, Limits())).response_schema == {"type": "string"}
    wrong = answer_service_pb2.AskRequest(session="s", query="q", response_schema="[]")
    with pytest.raises(InvalidInput, match="response_schema: the schema is no JSON object"):
        await answer_service.question_of(wrong, Limits())
