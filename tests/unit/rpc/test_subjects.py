"""Which session and memory a request is about."""

from typing import Any

import pytest
from google.protobuf import empty_pb2

from palimpsest.v1 import (
    billing_service_pb2,
    memories_pb2,
    memory_service_pb2,
    operation_service_pb2,
    session_service_pb2,
)
from service.domain.access.identity import LOCAL_IDENTITY, acting_as
from service.domain.values.tenancy import DEFAULT_TENANT, memory_id, session_key
from service.rpc.interceptors import tracing
from service.rpc.interceptors.base import Subject, subject_of
from service.rpc.interceptors.idempotency import identified
from service.telemetry import logs

SESSION = session_service_pb2.Session(id="s")
MEMORY = memories_pb2.Memory(session="s", id="m")
BUDGET = billing_service_pb2.Budget(session="s", memory="m")
IN_MEMORY = Subject(session="s", memory="m")


@pytest.mark.parametrize(
    ("request_", "subject"),
    [
        (session_service_pb2.CreateSessionRequest(session=SESSION), Subject(session="s")),
        (session_service_pb2.UpdateSessionRequest(session=SESSION), Subject(session="s")),
        (session_service_pb2.GetSessionRequest(session="s"), Subject(session="s")),
        (session_service_pb2.AppendChunksRequest.Open(session="s"), Subject(session="s")),
        (session_service_pb2.AppendChunksRequest(), Subject()),
        (session_service_pb2.ListSessionsRequest(), Subject()),
        (memory_service_pb2.CreateMemoryRequest(memory=MEMORY), IN_MEMORY),
        (memory_service_pb2.UpdateMemoryRequest(memory=MEMORY), IN_MEMORY),
        (memory_service_pb2.GetMemoryRequest(session="s", memory="m"), IN_MEMORY),
        (
            memory_service_pb2.RebuildMemoryRequest(
                session="s", memory="m", new_memory=memories_pb2.Memory(session="s", id="n")
            ),
            IN_MEMORY,
        ),
        (billing_service_pb2.SetBudgetRequest(budget=BUDGET), IN_MEMORY),
        (billing_service_pb2.SetBudgetRequest(), Subject()),
        (billing_service_pb2.DeleteBudgetRequest(session="s", memory="m"), IN_MEMORY),
        (operation_service_pb2.GetOperationRequest(operation="o"), Subject()),
        (None, Subject()),
        (empty_pb2.Empty(), Subject()),
    ],
)
def test_a_request_names_them_itself_or_by_its_resource(request_: Any, subject: Subject) -> None:
    assert subject_of(request_) == subject


def test_requests_are_kept_with_the_session_of_their_resource_and_the_log_says_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(logs, "say", lambda **about: said.append(about))
    with acting_as(LOCAL_IDENTITY):
        key = session_key(DEFAULT_TENANT, "s")
        created = memory_service_pb2.CreateMemoryRequest(memory=MEMORY, request_id="r")
        assert identified("CreateMemory", created).session_key == key
        budget = billing_service_pb2.SetBudgetRequest(budget=BUDGET, request_id="r")
        assert identified("SetBudget", budget).session_key == key
        deleted = billing_service_pb2.DeleteBudgetRequest(session="s", request_id="r")
        assert identified("DeleteBudget", deleted).session_key == session_key(DEFAULT_TENANT, "")
        for one in (created, session_service_pb2.CreateSessionRequest(session=SESSION)):
            tracing.say_subject(one)
        tracing.say_subject(session_service_pb2.ListSessionsRequest())
    assert said == [
        {"session": key, "memory": memory_id(key, "m")},
        {"session": key, "memory": None},
    ]
