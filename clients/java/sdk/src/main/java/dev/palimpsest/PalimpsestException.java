package dev.palimpsest;

import io.grpc.Status;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;

/**
 * The base of all errors of this client. Its message is one clear line that ends with what to do.
 *
 * <p>The classes within this one are named after gRPC's codes; {@link ConnectionFailed} means that
 * the service was not reached at all, {@link ProducerFenced} that another process has taken over a
 * producer. The reasons are those of {@link dev.palimpsest.v1.ErrorReason}, without the prefix.
 */
@SuppressWarnings("serial") // The maps are immutable, and can be serialized.
public class PalimpsestException extends RuntimeException {

  /** What is known of an error. */
  record Details(
      Status.Code code,
      String message,
      String reason,
      Map<String, String> metadata,
      Map<String, String> fields,
      Optional<Duration> retryDelay) {

    static Details of(Status.Code code, String message) {
      return new Details(code, message, "", Map.of(), Map.of(), Optional.empty());
    }

    static Details of(String reason, Map<String, String> metadata, String message) {
      return new Details(
          Status.Code.INVALID_ARGUMENT, message, reason, metadata, Map.of(), Optional.empty());
    }

    /** Returns the same with another message and more metadata. */
    Details reworded(String message, Map<String, String> more) {
      Map<String, String> all = new HashMap<>(metadata);
      all.putAll(more);
      return new Details(code, message, reason, Map.copyOf(all), fields, retryDelay);
    }
  }

  private final transient Details details;

  PalimpsestException(Details details, Throwable cause) {
    super(details.message(), cause);
    this.details = details;
  }

  /** Returns the status that the call ended with. */
  public Status.Code code() {
    return details.code();
  }

  /** Returns the ErrorReason without its prefix; empty where the service gave none. */
  public String reason() {
    return details.reason();
  }

  /** Returns the values that the comment of the reason names. */
  public Map<String, String> metadata() {
    return details.metadata();
  }

  /** Returns the fields of the request that are wrong, each with what is wrong. */
  public Map<String, String> fields() {
    return details.fields();
  }

  /** Returns when to try again, where the service says so. */
  public Optional<Duration> retryDelay() {
    return details.retryDelay();
  }

  /**
   * Returns whether nothing was done, so that the same request may be sent again. The client has
   * done so for as long as the timeout allowed.
   */
  public boolean isRetryable() {
    return code() == Status.Code.UNAVAILABLE
        || (code() == Status.Code.RESOURCE_EXHAUSTED && retryDelay().isPresent());
  }

  Details details() {
    return details;
  }

  /** Returns the error of a status, of the class that belongs to it. */
  static PalimpsestException of(Details details, Throwable cause) {
    return switch (details.code()) {
      case INVALID_ARGUMENT -> new InvalidArgument(details, cause);
      case NOT_FOUND -> new NotFound(details, cause);
      case ALREADY_EXISTS -> new AlreadyExists(details, cause);
      case OUT_OF_RANGE -> new OutOfRange(details, cause);
      case ABORTED ->
          details.reason().equals("PRODUCER_FENCED")
              ? new ProducerFenced(details, cause)
              : new Aborted(details, cause);
      case RESOURCE_EXHAUSTED -> new ResourceExhausted(details, cause);
      case FAILED_PRECONDITION -> new FailedPrecondition(details, cause);
      case DEADLINE_EXCEEDED -> new DeadlineExceeded(details, cause);
      case CANCELLED -> new Cancelled(details, cause);
      case UNAVAILABLE -> new Unavailable(details, cause);
      case UNAUTHENTICATED -> new Unauthenticated(details, cause);
      case PERMISSION_DENIED -> new PermissionDenied(details, cause);
      default -> new PalimpsestException(details, cause);
    };
  }

  /** Returns the same error with another message and more metadata. */
  static PalimpsestException reworded(
      PalimpsestException error, String message, Map<String, String> more) {
    Details details = error.details().reworded(message, more);
    return error instanceof ConnectionFailed
        ? new ConnectionFailed(details, error)
        : of(details, error);
  }

  /** The request is invalid. */
  public static final class InvalidArgument extends PalimpsestException {
    InvalidArgument(Details details, Throwable cause) {
      super(details, cause);
    }
  }

  /** The resource does not exist. */
  public static final class NotFound extends PalimpsestException {
    NotFound(Details details, Throwable cause) {
      super(details, cause);
    }
  }

  /** The resource exists already. */
  public static final class AlreadyExists extends PalimpsestException {
    AlreadyExists(Details details, Throwable cause) {
      super(details, cause);
    }
  }

  /** A number is outside of the existing range. */
  public static final class OutOfRange extends PalimpsestException {
    OutOfRange(Details details, Throwable cause) {
      super(details, cause);
    }
  }

  /** Another client was first. */
  public static class Aborted extends PalimpsestException {
    Aborted(Details details, Throwable cause) {
      super(details, cause);
    }
  }

  /** Another process has opened the same producer, with a newer epoch; this one must end. */
  public static final class ProducerFenced extends Aborted {
    ProducerFenced(Details details, Throwable cause) {
      super(details, cause);
    }
  }

  /** A limit is reached. */
  public static final class ResourceExhausted extends PalimpsestException {
    ResourceExhausted(Details details, Throwable cause) {
      super(details, cause);
    }
  }

  /** The state of the resource forbids the call. */
  public static final class FailedPrecondition extends PalimpsestException {
    FailedPrecondition(Details details, Throwable cause) {
      super(details, cause);
    }
  }

  /** The deadline has passed; the metadata has the progress. */
  public static final class DeadlineExceeded extends PalimpsestException {
    DeadlineExceeded(Details details, Throwable cause) {
      super(details, cause);
    }
  }

  /** A client has cancelled the work, or the thread was interrupted. */
  public static final class Cancelled extends PalimpsestException {
    Cancelled(Details details, Throwable cause) {
      super(details, cause);
    }
  }

  /** The service cannot process the call now; try again. */
  public static class Unavailable extends PalimpsestException {
    Unavailable(Details details, Throwable cause) {
      super(details, cause);
    }
  }

  /** The service cannot be reached. */
  public static final class ConnectionFailed extends Unavailable {
    ConnectionFailed(Details details, Throwable cause) {
      super(details, cause);
    }
  }

  /** The service needs a valid token or certificate: {@link Palimpsest.Builder#token}. */
  public static final class Unauthenticated extends PalimpsestException {
    Unauthenticated(Details details, Throwable cause) {
      super(details, cause);
    }
  }

  /** The token or certificate does not allow the call. */
  public static final class PermissionDenied extends PalimpsestException {
    PermissionDenied(Details details, Throwable cause) {
      super(details, cause);
    }
  }

  /** A producer was used after it was closed, or had ended with an error that was thrown. */
  public static final class ProducerClosed extends PalimpsestException {
    ProducerClosed(String message, Throwable cause) {
      super(Details.of(Status.Code.FAILED_PRECONDITION, message), cause);
    }
  }
}
