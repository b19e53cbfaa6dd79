package dev.palimpsest;

import dev.palimpsest.PalimpsestException.Details;
import dev.palimpsest.PalimpsestException.ProducerClosed;
import dev.palimpsest.Times.Backoff;
import dev.palimpsest.Times.Until;
import dev.palimpsest.v1.AppendChunksRequest;
import dev.palimpsest.v1.AppendChunksResponse;
import dev.palimpsest.v1.Chunk;
import dev.palimpsest.v1.SessionServiceGrpc;
import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.BooleanSupplier;

/**
 * Appends chunks in order, each exactly once, over one long-lived stream.
 *
 * <p>Chunks are kept until they are acked, and sent again under the same sequence when the
 * connection is lost. Chunks that wait while a batch is being written go into the next one. Calls
 * from several threads are safe, and one after the other.
 *
 * <p>A producer that is opened again under the same id, in any process, continues after the durable
 * chunks: an interrupted ingestion can skip {@link #lastAckedSequence} of them.
 *
 * <pre>{@code
 * try (Producer producer = session.producer("import")) {
 *   for (String line : lines) {
 *     producer.append(line);
 *   }
 * } // All of it is durable.
 * }</pre>
 */
public final class Producer implements AutoCloseable {

  /**
   * What is durable.
   *
   * @param producerSequence the number of the newest durable chunk of this producer
   * @param position its position in the log
   * @param readToken makes a later read wait until a memory has applied the chunk
   */
  public record Ack(long producerSequence, long position, String readToken) {}

  private final Connection connection;
  private final Duration giveUp;
  private final ReentrantLock lock = new ReentrantLock();

  /** Signalled after each change of what follows, which the lock guards. */
  private final Condition changed = lock.newCondition();

  private final SendQueue queue = new SendQueue();
  private AppendChunksRequest.Open opening;
  private Optional<PalimpsestException> failure = Optional.empty();

  /** Whether the failure was thrown. */
  private boolean reported;

  private boolean closing;
  private boolean ended;
  private Optional<AppendStream> stream = Optional.empty();
  private final Thread thread = new Thread(this::run, "palimpsest-producer");

  private Producer(Connection connection, AppendChunksRequest.Open opening, Duration giveUp) {
    this.connection = connection;
    this.opening = opening;
    this.giveUp = giveUp;
    thread.setDaemon(true);
  }

  /** Opens a producer. Throws when the service refuses. */
  static Producer open(Connection connection, AppendChunksRequest.Open opening, Duration giveUp) {
    Producer producer = new Producer(connection, opening, giveUp);
    producer.thread.start();
    try {
      producer.locked(
          () -> {
            producer.await(producer.queue::isOpened);
            return null;
          });
    } catch (RuntimeException error) {
      producer.stop();
      throw error;
    }
    return producer;
  }

  /** Returns the highest sequence of this producer that is durable; 0 when there is none. */
  public long lastAckedSequence() {
    return locked(queue::ackedSequence);
  }

  /** Returns the newest ack of this run. */
  public Optional<Ack> lastAck() {
    return locked(queue::lastAck);
  }

  /** Appends plain text; otherwise as {@link #append(Chunk)}. */
  public long append(String text) {
    return append(Chunks.text(text));
  }

  /**
   * Appends a chunk; returns its sequence, 1, 2, 3 … of this producer.
   *
   * <p>Waits only while there is no credit left. The chunk is durable when {@link #flush} returns,
   * or {@link #lastAckedSequence} has reached its number. A chunk beyond the limits of this service
   * ends the producer when it arrives: the refusal is thrown once, with the number of the append,
   * then {@link ProducerClosed}.
   *
   * @throws PalimpsestException.InvalidArgument for a chunk that no service accepts; others are
   *     unaffected
   * @throws PalimpsestException.ProducerFenced when another process has opened this producer
   */
  public long append(Chunk chunk) {
    return locked(
        () -> {
          if (closing) {
            throw new ProducerClosed("the producer is closed", null);
          }
          int size = queue.check(chunk);
          await(() -> queue.hasCredit(size));
          long sequence = queue.put(chunk, size);
          changed.signalAll();
          return sequence;
        });
  }

  /** Waits until all appended chunks are durable; returns the newest ack of this run. */
  public Optional<Ack> flush() {
    return locked(
        () -> {
          long wanted = queue.lastSequence();
          await(() -> queue.ackedSequence() >= wanted);
          return queue.lastAck();
        });
  }

  /** Waits until everything is durable, unless an error was thrown before, and closes. */
  @Override
  public void close() {
    try {
      if (locked(() -> !reported && !closing)) {
        flush();
      }
    } finally {
      stop();
    }
  }

  /** Closes without a wait for what is not yet durable. */
  void stop() {
    locked(
        () -> {
          closing = true;
          stream.ifPresent(AppendStream::cancel);
          changed.signalAll();
          return null;
        });
    try {
      thread.join();
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
  }

  private <T> T locked(java.util.function.Supplier<T> work) {
    lock.lock();
    try {
      return work.get();
    } finally {
      lock.unlock();
    }
  }

  /** Waits, with the lock. Throws the error that ended the producer. */
  private void await(BooleanSupplier isThere) {
    while (!isThere.getAsBoolean()) {
      throwFailure();
      if (ended) {
        throw new ProducerClosed("the producer is closed", null);
      }
      try {
        changed.await();
      } catch (InterruptedException error) {
        throw Errors.interrupted(error);
      }
    }
    throwFailure();
  }

  /** Throws the error that ended the producer, and only the first time. */
  private void throwFailure() {
    if (failure.isEmpty()) {
      return;
    }
    PalimpsestException error = failure.get();
    if (reported) {
      throw new ProducerClosed("the producer has ended: " + error.getMessage(), error);
    }
    reported = true;
    throw error;
  }

  /** Keeps a stream open until the producer is closed or refused for good. */
  private void run() {
    Optional<PalimpsestException> found = Optional.empty();
    try {
      keepOpen();
    } catch (PalimpsestException error) {
      found = Optional.of(error);
    } catch (RuntimeException error) {
      Details details = Details.of(Status.Code.UNKNOWN, "the producer has failed: " + error);
      found = Optional.of(PalimpsestException.of(details, error));
    } finally {
      Optional<PalimpsestException> known = found;
      locked(
          () -> {
            failure = known;
            ended = true;
            changed.signalAll();
            return null;
          });
    }
  }

  private void keepOpen() {
    Backoff backoff = new Backoff(Connection.FIRST_STREAM_PAUSE);
    long progress = lastAckedSequence();
    long since = System.nanoTime();
    while (!locked(() -> closing)) {
      AppendStream one = new AppendStream();
      PalimpsestException error = one.run();
      if (locked(() -> closing)) {
        return;
      }
      if (!Errors.mayPass(error)) {
        throw locked(() -> queue.refusal(error));
      }
      // A stream that ended while there was nothing to send did all that was asked of it.
      boolean idle = locked(() -> one.opened && queue.isEmpty());
      if (idle || lastAckedSequence() > progress) {
        progress = lastAckedSequence();
        since = System.nanoTime();
        backoff.restart();
      }
      if (System.nanoTime() - since > connection.tryFor(giveUp).toNanos()) {
        throw error;
      }
      pause(backoff.pause(error));
    }
  }

  /** Waits before the next stream, or until the producer is closed. */
  private void pause(Duration duration) {
    Until until = Until.after(duration);
    locked(
        () -> {
          try {
            while (!closing && changed.awaitNanos(until.left().toNanos()) > 0) {}
            return null;
          } catch (InterruptedException error) {
            throw Errors.interrupted(error);
          }
        });
  }

  /** One stream. All of it is guarded by the producer's lock. */
  private final class AppendStream extends ClientCall.Listener<AppendChunksResponse> {
    private final ClientCall<AppendChunksRequest, AppendChunksResponse> call =
        connection
            .channel()
            .newCall(SessionServiceGrpc.getAppendChunksMethod(), CallOptions.DEFAULT);
    private boolean opened;
    private Optional<PalimpsestException> over = Optional.empty();

    /** Sends until the stream is over; returns why it is. */
    PalimpsestException run() {
      return locked(
          () -> {
            stream = Optional.of(this);
            if (connection.isClosed()) {
              throw new ProducerClosed("the client of this producer is closed", null);
            }
            call.start(this, new Metadata());
            call.request(1);
            call.sendMessage(AppendChunksRequest.newBuilder().setOpen(opening).build());
            while (over.isEmpty()) {
              sendOrAwait();
            }
            return over.get();
          });
    }

    private void sendOrAwait() {
      OptionalLong linger = opened && call.isReady() ? queue.lingerNanos() : OptionalLong.empty();
      if (linger.isPresent() && linger.getAsLong() == 0) {
        call.sendMessage(AppendChunksRequest.newBuilder().setBatch(queue.nextBatch()).build());
        return;
      }
      try {
        changed.awaitNanos(linger.orElse(Long.MAX_VALUE));
      } catch (InterruptedException error) {
        throw Errors.interrupted(error);
      }
    }

    void cancel() {
      call.cancel("the producer is closed", null);
    }

    @Override
    public void onReady() {
      locked(
          () -> {
            changed.signalAll();
            return null;
          });
    }

    @Override
    public void onMessage(AppendChunksResponse response) {
      locked(
          () -> {
            if (response.hasAck()) {
              queue.take(response.getAck());
            } else if (response.hasOpened()) {
              connection.reached();
              queue.begin(response.getOpened());
              opened = true;
              // The head was checked; what we append ourselves moves it on.
              opening = opening.toBuilder().clearExpectedHead().build();
            }
            changed.signalAll();
            return null;
          });
      call.request(1);
    }

    @Override
    public void onClose(Status status, Metadata trailers) {
      Status end =
          status.isOk()
              ? Status.UNAVAILABLE.withDescription("the service ended the stream without a reason")
              : status;
      PalimpsestException error = connection.failure(new StatusRuntimeException(end, trailers));
      locked(
          () -> {
            over = Optional.of(error);
            changed.signalAll();
            return null;
          });
    }
  }
}
