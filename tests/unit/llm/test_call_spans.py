"""What the span of a model call says of a defect."""

import pytest
from opentelemetry.trace import StatusCode

from service.domain.flows import ModelAsk
from service.llm.plans import Plan
from service.llm.transport import Completion
from tests.exported import exported
from tests.unit.llm.test_joined_calls import FencedLedger, Slow, caller, order

PIECE = "a piece of a reply"


class Broken(Slow):
    """A model whose reply a defect of ours breaks on."""

    async def complete(self, ask: ModelAsk, model: str, plan: Plan) -> Completion:
        raise KeyError(PIECE)


async def test_a_defect_leaves_its_type_in_the_span_and_not_its_words() -> None:
    with exported() as spans:
        ledger = FencedLedger()
        with pytest.raises(KeyError):
            await caller(Broken(), ledger).make(order(ledger.take()))
    (chat,) = spans.named("chat m/x")
    assert chat.status.status_code is StatusCode.ERROR
    assert (chat.attributes or {})["error.type"] == "KeyError"
    assert PIECE not in spans.text()
