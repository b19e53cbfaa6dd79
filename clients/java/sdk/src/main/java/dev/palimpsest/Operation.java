package dev.palimpsest;

import dev.palimpsest.PalimpsestException.Cancelled;
import dev.palimpsest.PalimpsestException.DeadlineExceeded;
import dev.palimpsest.PalimpsestException.Details;
import dev.palimpsest.Times.Backoff;
import dev.palimpsest.Times.Until;
import dev.palimpsest.v1.CancelOperationRequest;
import dev.palimpsest.v1.GetOperationRequest;
import dev.palimpsest.v1.OperationServiceGrpc;
import dev.palimpsest.v1.OperationState;
import dev.palimpsest.v1.WaitOperationRequest;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.Map;
import java.util.Optional;
import java.util.function.Consumer;

/**
 * Work that continues without its client: a rebuild, a consolidation, a seal, a schema that a model
 * writes, the removal of what was derived from forgotten chunks.
 *
 * <pre>{@code
 * Operation rebuild = memory.rebuild("facts-2", wanted -> wanted.getPrismBuilder().setTask("…"));
 * rebuild.await(Duration.ofMinutes(5)).getMemoryResult();
 * }</pre>
 *
 * <p>It shows the operation as it was last read; {@code await}, {@code refresh} and {@code cancel}
 * read it again.
 */
public final class Operation {
  /** How long a wait tries to reach a lost service. */
  private static final Duration GIVE_UP = Duration.ofMinutes(1);

  private final Connection connection;
  private final Optional<Duration> timeout;
  private volatile dev.palimpsest.v1.Operation info;

  Operation(Connection connection, dev.palimpsest.v1.Operation info, Optional<Duration> timeout) {
    this.connection = connection;
    this.info = info;
    this.timeout = timeout;
  }

  /** Returns the operation as it was last read. */
  public dev.palimpsest.v1.Operation info() {
    return info;
  }

  /** Returns the id, for {@link Palimpsest#operation}; unique within the tenant. */
  public String id() {
    return info.getId();
  }

  /** Returns whether it is done, has failed or was cancelled. */
  public boolean hasEnded() {
    return switch (info.getState()) {
      case OPERATION_STATE_DONE, OPERATION_STATE_FAILED, OPERATION_STATE_CANCELLED -> true;
      default -> false;
    };
  }

  /** Reads it again; it is kept for 30 days. */
  public dev.palimpsest.v1.Operation refresh() {
    GetOperationRequest request = GetOperationRequest.newBuilder().setOperation(id()).build();
    info = connection.call(OperationServiceGrpc.getGetOperationMethod(), request, timeout);
    return info;
  }

  /** Waits until it has ended, however long that takes; otherwise as the other. */
  public dev.palimpsest.v1.Operation await() {
    return await(Optional.empty(), operation -> {});
  }

  /** Waits until it has ended; otherwise as the other. */
  public dev.palimpsest.v1.Operation await(Duration timeout) {
    return await(Optional.of(timeout), operation -> {});
  }

  /**
   * Waits until it has ended; returns it with its result. The consumer receives it now and after
   * each change. The operation continues in any case.
   *
   * @throws PalimpsestException its error when it has failed
   * @throws Cancelled when it was cancelled
   * @throws DeadlineExceeded ({@code OPERATION_NOT_ENDED_IN_TIME})
   * @throws PalimpsestException.NotFound when its result was deleted
   * @throws PalimpsestException.Unavailable when the service is lost for a minute
   */
  public dev.palimpsest.v1.Operation await(
      Duration timeout, Consumer<dev.palimpsest.v1.Operation> onProgress) {
    return await(Optional.of(timeout), onProgress);
  }

  private dev.palimpsest.v1.Operation await(
      Optional<Duration> limit, Consumer<dev.palimpsest.v1.Operation> onProgress) {
    if (hasEnded() && info.getResultCase().getNumber() == 0) {
      // A list has no results.
      refresh();
    }
    Optional<Until> until = limit.map(Until::after);
    Optional<Until> giveUp = Optional.empty();
    Backoff backoff = new Backoff(Connection.FIRST_PAUSE);
    while (!hasEnded()) {
      try {
        follow(until.map(Until::left), onProgress, backoff);
        giveUp = Optional.empty();
      } catch (StatusRuntimeException error) {
        PalimpsestException known = connection.failure(error);
        if (known instanceof DeadlineExceeded) {
          throw late(known);
        }
        giveUp = giveUp.or(() -> Optional.of(Until.after(connection.tryFor(GIVE_UP))));
        Duration pause = backoff.pause(known);
        if (!Errors.mayPass(known) || !giveUp.get().isWithin(pause)) {
          throw known;
        }
        if (until.isPresent() && !until.get().isWithin(pause)) {
          throw late(known);
        }
        Times.sleep(pause);
      }
    }
    return ended();
  }

  /** Reads what one call reports of it. */
  private void follow(
      Optional<Duration> left, Consumer<dev.palimpsest.v1.Operation> onProgress, Backoff backoff) {
    WaitOperationRequest request = WaitOperationRequest.newBuilder().setOperation(id()).build();
    try (Responses<dev.palimpsest.v1.Operation> responses =
        connection.responses(OperationServiceGrpc.getWaitOperationMethod(), request, left)) {
      for (var next = responses.next(); next.isPresent(); next = responses.next()) {
        connection.reached();
        backoff.restart();
        info = next.get();
        onProgress.accept(info);
      }
    }
    if (!hasEnded()) {
      throw Status.UNAVAILABLE
          .withDescription("the service ended the wait without a reason")
          .asRuntimeException();
    }
  }

  private PalimpsestException late(PalimpsestException cause) {
    return new DeadlineExceeded(
        new Details(
            Status.Code.DEADLINE_EXCEEDED,
            "operation " + id() + " has not ended in time; it goes on: wait for it again",
            "OPERATION_NOT_ENDED_IN_TIME",
            Map.of("operation", id()),
            Map.of(),
            Optional.empty()),
        cause);
  }

  private dev.palimpsest.v1.Operation ended() {
    if (info.hasError()) {
      throw Errors.of(info.getError());
    }
    boolean isCancelled = info.getState() == OperationState.OPERATION_STATE_CANCELLED;
    if (isCancelled || info.getResultCase().getNumber() == 0) {
      Status.Code code = isCancelled ? Status.Code.CANCELLED : Status.Code.NOT_FOUND;
      String message =
          isCancelled
              ? "operation " + id() + " was cancelled"
              : "the result of operation " + id() + " was deleted";
      Map<String, String> which = Map.of("operation", id());
      throw PalimpsestException.of(
          new Details(code, message, "", which, Map.of(), Optional.empty()), null);
    }
    return info;
  }

  /**
   * Cancels it if it has not ended, and returns it. A rebuild deletes its new memory; a
   * consolidation or a seal leaves the memory unchanged.
   */
  public dev.palimpsest.v1.Operation cancel() {
    CancelOperationRequest request = CancelOperationRequest.newBuilder().setOperation(id()).build();
    info = connection.call(OperationServiceGrpc.getCancelOperationMethod(), request, timeout);
    return info;
  }
}
