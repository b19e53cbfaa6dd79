package dev.palimpsest;

import dev.palimpsest.Times.Backoff;
import dev.palimpsest.v1.MemoryServiceGrpc;
import dev.palimpsest.v1.WatchMemoryRequest;
import dev.palimpsest.v1.WatchMemoryResponse;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.Optional;

/**
 * The revisions of a memory as they are committed, without an end.
 *
 * <pre>{@code
 * try (Watch watch = memory.watch()) {
 *   watch.forEachRemaining(one -> System.out.println(one.getAmendmentsList()));
 * }
 * }</pre>
 *
 * <p>After a lost connection it continues after the last revision; {@link #resumeToken} does the
 * same in another process. One thread reads it; any thread may close it, which ends the wait.
 */
public final class Watch implements Iterator<WatchMemoryResponse>, AutoCloseable {
  private final Connection connection;
  private final Duration giveUp;
  private final Backoff backoff = new Backoff(Connection.FIRST_STREAM_PAUSE);
  private volatile WatchMemoryRequest request;
  private volatile Optional<Responses<WatchMemoryResponse>> responses = Optional.empty();
  private volatile boolean closed;
  private Optional<WatchMemoryResponse> next = Optional.empty();

  /** When the service was lost; empty while it is there. */
  private Optional<Long> lostAt = Optional.empty();

  private Watch(Connection connection, WatchMemoryRequest request, Duration giveUp) {
    this.connection = connection;
    this.request = request;
    this.giveUp = giveUp;
  }

  static Watch open(Connection connection, WatchMemoryRequest request, Duration giveUp) {
    Watch watch = new Watch(connection, request, giveUp);
    while (watch.responses.isEmpty()) {
      watch.read();
    }
    return watch;
  }

  /** Returns what continues after the last revision. */
  public String resumeToken() {
    return request.getResumeToken();
  }

  /**
   * Waits for the next revision; false once the watch is closed.
   *
   * @throws PalimpsestException when the watch has failed, or the service is lost for too long
   */
  @Override
  public boolean hasNext() {
    while (next.isEmpty() && !closed) {
      read();
    }
    return next.isPresent();
  }

  /** Waits for the next revision, and returns it. */
  @Override
  public WatchMemoryResponse next() {
    if (!hasNext()) {
      throw new NoSuchElementException("the watch is closed");
    }
    WatchMemoryResponse found = next.orElseThrow();
    request = request.toBuilder().setResumeToken(found.getResumeToken()).build();
    next = Optional.empty();
    return found;
  }

  /** Ends the watch, and a wait of another thread for its next revision. */
  @Override
  public void close() {
    closed = true;
    responses.ifPresent(Responses::close);
  }

  /** Opens a stream or reads from it; pauses when it was lost. */
  private void read() {
    try {
      if (responses.isEmpty()) {
        open();
      } else {
        next = Optional.of(response(responses.get()));
        backoff.restart();
      }
      lostAt = Optional.empty();
    } catch (StatusRuntimeException error) {
      responses.ifPresent(Responses::close);
      responses = Optional.empty();
      PalimpsestException known = connection.failure(error);
      if (closed) {
        return;
      }
      if (!Errors.mayPass(known)) {
        throw known;
      }
      pause(known);
    }
  }

  private void open() {
    Responses<WatchMemoryResponse> opened =
        connection.responses(MemoryServiceGrpc.getWatchMemoryMethod(), request, Optional.empty());
    try {
      // The first one says that the watch has begun.
      WatchMemoryResponse first = response(opened);
      request = request.toBuilder().setResumeToken(first.getResumeToken()).build();
    } catch (RuntimeException error) {
      opened.close();
      throw error;
    }
    responses = Optional.of(opened);
    if (closed) {
      opened.close();
    }
  }

  private WatchMemoryResponse response(Responses<WatchMemoryResponse> from) {
    WatchMemoryResponse found =
        from.next()
            .orElseThrow(
                () ->
                    Status.UNAVAILABLE
                        .withDescription("the service ended the watch without a reason")
                        .asRuntimeException());
    connection.reached();
    return found;
  }

  private void pause(PalimpsestException error) {
    long now = System.nanoTime();
    lostAt = lostAt.or(() -> Optional.of(now));
    Duration pause = backoff.pause(error);
    if (now + pause.toNanos() - lostAt.get() > connection.tryFor(giveUp).toNanos()) {
      throw error;
    }
    Times.sleep(pause);
  }
}
