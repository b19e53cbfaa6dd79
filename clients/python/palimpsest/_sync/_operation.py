# Generated from palimpsest/_async by `make sync`; do not edit.
"""Operations: long work that goes on without its client."""

import time
from collections.abc import Callable
from typing import Any

from palimpsest._errors import DeadlineExceeded
from palimpsest._operations import OperationInfo, OperationView, Result
from palimpsest._sync._connection import Connection
from palimpsest._sync._runtime import RpcError, sleep
from palimpsest._transport import (
    BACKOFF_SECONDS,
    Backoff,
    deadline_of,
    may_pass,
)
from palimpsest.v1 import operation_service_pb2, operations_pb2

#: Receives an operation at first, and after each change.
OnProgress = Callable[[OperationInfo[Any]], None]
#: How long `wait` tries to reach a lost service.
GIVE_UP_SECONDS = 60.0


class Operation(OperationView[Result]):
    """A rebuild, a consolidation, a seal, or a schema that a model writes.

        operation = memory.rebuild("facts-2", task="Dates only.")
        info = operation.wait()

    It shows the operation as it was last read; `wait`, `refresh` and `cancel` read it again. The
    work continues without its client.
    """

    def __init__(self, connection: Connection, message: operations_pb2.Operation) -> None:
        super().__init__(message)
        self._connection = connection

    def refresh(self) -> OperationInfo[Result]:
        """Reads it again; it is kept for 30 days. Raises NotFound."""
        request = operation_service_pb2.GetOperationRequest(operation=self.id)
        method = self._connection.operations.GetOperation
        return self._take(self._connection.call(method, request))

    def wait(
        self, *, timeout: float | None = None, on_progress: OnProgress | None = None
    ) -> Result:
        """Waits until it has ended; returns its result.

        Waits at most `timeout` seconds; None: without a limit. `on_progress` receives the
        operation now and after each change. Raises its error when it failed, Cancelled,
        DeadlineExceeded (OPERATION_NOT_ENDED_IN_TIME), NotFound when its result was deleted, and
        Unavailable when the service is lost for a minute. The operation continues in any case.
        """
        if self.has_ended and self.result is None:
            # A list has no results.
            self.refresh()
        until = None if timeout is None else time.monotonic() + deadline_of(timeout, 0.0)
        give_up: float | None = None
        backoff = Backoff(BACKOFF_SECONDS)
        while not self.has_ended:
            try:
                left = None if until is None else max(until - time.monotonic(), 0.001)
                request = operation_service_pb2.WaitOperationRequest(operation=self.id)
                method = self._connection.operations.WaitOperation
                for message in self._connection.responses(method, request, timeout=left):
                    give_up = None
                    backoff.restart()
                    self._take(message)
                    if on_progress is not None:
                        on_progress(self.info)
            except RpcError as error:
                known = self._connection.reach.failure(error)
                if isinstance(known, DeadlineExceeded):
                    raise self._late() from error
                if give_up is None:
                    tried = self._connection.reach.try_seconds(GIVE_UP_SECONDS)
                    give_up = time.monotonic() + tried
                pause = backoff.pause_seconds(known)
                after = time.monotonic() + pause
                if not may_pass(known, error.code()) or after > give_up:
                    raise known from error
                if until is not None and after > until:
                    raise self._late() from error
                sleep(pause)
        return self._ended()

    def cancel(self, *, request_id: str = "") -> OperationInfo[Result]:
        """Cancels it if it has not ended, and returns it.

        A rebuild deletes its new memory; a consolidation or a seal leaves the memory unchanged.
        Raises NotFound.
        """
        request = operation_service_pb2.CancelOperationRequest(
            operation=self.id, request_id=request_id
        )
        method = self._connection.operations.CancelOperation
        return self._take(self._connection.call(method, request))
