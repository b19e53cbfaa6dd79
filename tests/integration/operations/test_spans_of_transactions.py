"""What the spans of transactions say of what fails within them."""

from contextlib import AbstractAsyncContextManager

import pytest
from opentelemetry import trace
from opentelemetry.trace import StatusCode

from service.domain.values.errors import NotFound
from service.domain.values.tenancy import DEFAULT_TENANT
from service.settings.config import Limits
from service.usecases.log.append import Appender
from service.usecases.log.wake_ups import WakeUps
from storage.engine.database import Database
from storage.engine.errors import Busy
from tests.integration.support.writing import drop_wake_ups
from tests.support.exported import exported

NAME = "Patient Jane Doe"


def opened(database: Database, kind: str) -> AbstractAsyncContextManager[object]:
    way: AbstractAsyncContextManager[object] = getattr(database, kind)(DEFAULT_TENANT, name="test")
    return way


async def test_a_name_that_a_refusal_has_is_in_no_span(database: Database) -> None:
    appender = Appender(database, WakeUps(drop_wake_ups), b"k" * 32, Limits())
    with exported() as spans:
        with trace.get_tracer("test").start_as_current_span("call"):
            with pytest.raises(NotFound, match=NAME):
                await appender.open(
                    DEFAULT_TENANT, session=NAME, producer_id="p", epoch=0, expected_head=None
                )
    (transaction,) = spans.named("transaction append")
    assert transaction.status.status_code is StatusCode.UNSET, "the database did what it was asked"
    assert NAME not in spans.text()


@pytest.mark.parametrize("kind", ["transaction", "snapshot", "direct"])
async def test_an_error_of_the_database_has_its_type_alone(database: Database, kind: str) -> None:
    with exported() as spans:
        with trace.get_tracer("test").start_as_current_span("call"):
            with pytest.raises(Busy):
                async with opened(database, kind):
                    raise Busy(NAME)
    (transaction,) = spans.named("transaction test")
    assert transaction.status.status_code is StatusCode.ERROR
    assert (transaction.attributes or {})["error.type"] == "Busy"
    assert NAME not in spans.text()
