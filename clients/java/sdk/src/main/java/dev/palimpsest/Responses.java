package dev.palimpsest;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/** The responses of one streaming call, each requested when the one before was read. */
final class Responses<T> implements AutoCloseable {

  /** A message, or with an error the end. */
  private record Event<T>(Optional<T> message, StatusRuntimeException error) {}

  private final BlockingQueue<Event<T>> events = new LinkedBlockingQueue<>();
  private final ClientCall<?, T> call;

  private <Q> Responses(ClientCall<Q, T> call, Q request) {
    this.call = call;
    call.start(
        new ClientCall.Listener<T>() {
          @Override
          public void onMessage(T message) {
            events.add(new Event<>(Optional.of(message), null));
          }

          @Override
          public void onClose(Status status, Metadata trailers) {
            events.add(
                new Event<>(
                    Optional.empty(),
                    status.isOk() ? null : new StatusRuntimeException(status, trailers)));
          }
        },
        new Metadata());
    call.sendMessage(request);
    call.halfClose();
    call.request(1);
  }

  static <Q, T> Responses<T> of(
      Channel channel, MethodDescriptor<Q, T> method, CallOptions options, Q request) {
    return new Responses<>(channel.newCall(method, options), request);
  }

  /**
   * Waits for the next response; returns none after the last one.
   *
   * @throws StatusRuntimeException when the call has failed
   */
  Optional<T> next() {
    try {
      Event<T> event = events.take();
      if (event.message().isPresent()) {
        call.request(1);
        return event.message();
      }
      // It stays the end, however often it is read.
      events.add(event);
      if (event.error() != null) {
        throw event.error();
      }
      return Optional.empty();
    } catch (InterruptedException error) {
      close();
      throw Errors.interrupted(error);
    }
  }

  /** Ends the call, and a wait of another thread for its next response. */
  @Override
  public void close() {
    call.cancel("the client has left", null);
  }
}
