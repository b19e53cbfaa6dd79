"""What the span of a model call says of a defect."""

import pytest
from opentelemetry.trace import StatusCode

from service.domain.prompting.flows import ModelRequest
from service.llm.providers.plans import CallPlan
from service.llm.providers.transport import Completion
from tests.support.exported import exported
from tests.unit.calls.test_joined_calls import FencedLedger, Slow, executor, order

PIECE = "a piece of a reply"


class Broken(Slow):
    """A model whose reply a defect of ours breaks on."""

    async def complete(self, ask: ModelRequest, model: str, plan: CallPlan) -> Completion:
        raise KeyError(PIECE)


async def test_a_defect_leaves_its_type_in_the_span_and_not_its_words() -> None:
    with exported() as spans:
        ledger = FencedLedger()
        with pytest.raises(KeyError):
            await executor(Broken(), ledger).make(order(ledger.take()))
    (chat,) = spans.named("chat m/x")
    assert chat.status.status_code is StatusCode.ERROR
    assert (chat.attributes or {})["error.type"] == "KeyError"
    assert PIECE not in spans.text()
