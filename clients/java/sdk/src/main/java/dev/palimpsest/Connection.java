package dev.palimpsest;

import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Message;
import dev.palimpsest.PalimpsestException.ConnectionFailed;
import dev.palimpsest.Times.Backoff;
import dev.palimpsest.Times.Until;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientInterceptors;
import io.grpc.ManagedChannel;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCalls;
import java.time.Duration;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.Spliterator;
import java.util.Spliterators;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;

/** The connection that all objects of a client share, and calls that are repeated where safe. */
final class Connection implements AutoCloseable {
  static final Duration CALL = Duration.ofSeconds(30);

  /** As CALL, of a question, and of an append, which is stored once however often it is tried. */
  static final Duration ASK = Duration.ofSeconds(60);

  static final Duration APPEND = Duration.ofSeconds(60);
  static final Duration FIRST_PAUSE = Duration.ofMillis(100);
  static final Duration FIRST_STREAM_PAUSE = Duration.ofMillis(50);

  /** Given to a reply of the service's own deadline to arrive before ours. */
  private static final Duration SLACK = Duration.ofMillis(500);

  /** gRPC treats far longer timeouts as passed. */
  private static final Duration LONGEST = Duration.ofDays(365);

  private final String address;
  private final ManagedChannel managed;
  private final Channel channel;
  private final Optional<Duration> timeout;
  private final Duration reach;
  private volatile boolean reached;

  Connection(
      String address,
      ManagedChannel managed,
      Optional<Credentials> credentials,
      Optional<Duration> timeout,
      Duration reach) {
    this.address = address;
    this.managed = managed;
    this.channel =
        credentials.<Channel>map(one -> ClientInterceptors.intercept(managed, one)).orElse(managed);
    this.timeout = timeout;
    this.reach = reach;
  }

  String address() {
    return address;
  }

  Channel channel() {
    return channel;
  }

  boolean isClosed() {
    return managed.isShutdown();
  }

  /** Returns the timeout of a call: its own, else the client's, else the default. */
  Duration timeoutOf(Optional<Duration> own, Duration otherwise) {
    Duration found = own.or(() -> timeout).orElse(otherwise);
    return found.compareTo(LONGEST) > 0 ? LONGEST : found;
  }

  /** Returns how long to try what may take so long: less before the first contact. */
  Duration tryFor(Duration duration) {
    return reached || duration.compareTo(reach) < 0 ? duration : reach;
  }

  /** Notes that the service has replied. */
  void reached() {
    reached = true;
  }

  /** Returns the client's error for one of gRPC's. */
  PalimpsestException failure(StatusRuntimeException error) {
    PalimpsestException known = Errors.of(error, address);
    if (!(known instanceof ConnectionFailed)) {
      reached = true;
      return known;
    }
    // Otherwise gRPC would pause for longer than we do.
    managed.resetConnectBackoff();
    if (reached) {
      return known;
    }
    String advice =
        "; for a service that is starting, reachFor(Duration.ofMinutes(1)) waits longer than "
            + reach.toMillis() / 1000.0
            + " s";
    return PalimpsestException.reworded(known, known.getMessage() + advice, java.util.Map.of());
  }

  <Q extends Message, R> R call(MethodDescriptor<Q, R> method, Q request, Optional<Duration> own) {
    return call(method, request, Until.after(timeoutOf(own, CALL)), true);
  }

  /**
   * Makes a unary call, and repeats it while the service is unavailable or full.
   *
   * <p>What writes gets a request id, if it has none, so that a repetition has no further effect.
   * Where a method has none, and with {@code repeat} false, only refusals that precede any work are
   * repeated.
   */
  <Q extends Message, R> R call(
      MethodDescriptor<Q, R> method, Q request, Until until, boolean repeat) {
    Q sent = method.isSafe() ? request : identified(request);
    boolean isSafe = repeat && (method.isSafe() || requestId(sent).isPresent());
    Backoff backoff = new Backoff(FIRST_PAUSE);
    Until give = Until.after(tryFor(until.left()));
    while (true) {
      try {
        R response = ClientCalls.blockingUnaryCall(channel, method, options(until.left()), sent);
        reached = true;
        return response;
      } catch (StatusRuntimeException error) {
        PalimpsestException known = failure(error);
        Duration pause = backoff.pause(known);
        boolean again = isSafe ? Errors.mayPass(known) : Errors.isUnbegun(known);
        if (!again || !(reached ? until : give).isWithin(pause)) {
          throw known;
        }
        Times.sleep(pause);
      }
    }
  }

  /** Begins a streaming call; without a timeout it has no end. */
  <Q, R> Responses<R> responses(
      MethodDescriptor<Q, R> method, Q request, Optional<Duration> timeout) {
    CallOptions options = timeout.map(Connection::options).orElse(CallOptions.DEFAULT);
    return Responses.of(channel, method, options, request);
  }

  private static CallOptions options(Duration left) {
    return CallOptions.DEFAULT.withDeadlineAfter(left.plus(SLACK).toNanos(), TimeUnit.NANOSECONDS);
  }

  /** Returns all items of the pages of a list, which are read as needed. */
  <Q extends Message, R extends Message, T> Stream<T> all(
      MethodDescriptor<Q, R> method,
      Q request,
      java.util.function.Function<R, List<T>> items,
      Optional<Duration> timeout) {
    Iterator<T> iterator =
        new Iterator<>() {
          private Optional<Q> next = Optional.of(request);
          private Iterator<T> page = List.<T>of().iterator();

          @Override
          public boolean hasNext() {
            while (!page.hasNext() && next.isPresent()) {
              R response = call(method, next.get(), timeout);
              page = items.apply(response).iterator();
              String token = text(response, "next_page_token").orElse("");
              next =
                  token.isEmpty()
                      ? Optional.empty()
                      : Optional.of(with(request, "page_token", token));
            }
            return page.hasNext();
          }

          @Override
          public T next() {
            if (!hasNext()) {
              throw new NoSuchElementException();
            }
            return page.next();
          }
        };
    return StreamSupport.stream(
        Spliterators.spliteratorUnknownSize(iterator, Spliterator.ORDERED | Spliterator.NONNULL),
        false);
  }

  private static <Q extends Message> Q identified(Q request) {
    boolean missing = text(request, "request_id").filter(String::isEmpty).isPresent();
    return missing ? with(request, "request_id", newId()) : request;
  }

  private static Optional<String> requestId(Message request) {
    return text(request, "request_id").filter(one -> !one.isEmpty());
  }

  static String newId() {
    return UUID.randomUUID().toString().replace("-", "");
  }

  private static Optional<String> text(Message message, String name) {
    FieldDescriptor field = message.getDescriptorForType().findFieldByName(name);
    return Optional.ofNullable(field).map(one -> (String) message.getField(one));
  }

  @SuppressWarnings("unchecked") // A builder builds messages of its own type.
  private static <Q extends Message> Q with(Q message, String name, String value) {
    FieldDescriptor field = message.getDescriptorForType().findFieldByName(name);
    return (Q) message.toBuilder().setField(field, value).build();
  }

  @Override
  public void close() {
    managed.shutdownNow();
    try {
      managed.awaitTermination(5, TimeUnit.SECONDS);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
  }
}
