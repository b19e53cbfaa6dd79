package dev.palimpsest;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import dev.palimpsest.PalimpsestException.ConnectionFailed;
import dev.palimpsest.PalimpsestException.Details;
import dev.palimpsest.v1.ErrorStatus;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;

/** Converts errors of gRPC, and says which of them may pass. */
final class Errors {
  /** What TLS says of a connection that was refused, and what to do. */
  private static final Map<String, String> HANDSHAKES =
      Map.of(
          "not an SSL/TLS record",
          "does not use TLS: connect to grpc://HOST:PORT, on this machine only",
          "No subject alternative",
          "shows a certificate that is for another name: connect to a name that it has",
          "No name matching",
          "shows a certificate that is for another name: connect to a name that it has",
          "NotAfter",
          "shows a certificate that has expired: its operator renews it",
          "unable to find valid certification path",
          "shows a certificate of none of the trusted roots: name its root by caFile"
              + " (PALIMPSEST_CA_FILE)",
          "Path does not chain",
          "shows a certificate of none of the trusted roots: name its root by caFile"
              + " (PALIMPSEST_CA_FILE)");

  /** Refusals of a service that is full, which come before it has begun anything. */
  private static final java.util.Set<String> UNBEGUN =
      java.util.Set.of("TOO_MANY_CALLS", "TOO_MANY_ASKS", "TOO_MANY_PENDING");

  private Errors() {}

  /** Returns the client's error for one of gRPC's. */
  static PalimpsestException of(StatusRuntimeException error, String address) {
    com.google.rpc.Status status = StatusProto.fromThrowable(error);
    if (status == null || status.getDetailsCount() == 0) {
      return withoutDetails(error, address);
    }
    String reason = "";
    Map<String, String> metadata = Map.of();
    Map<String, String> fields = new LinkedHashMap<>();
    Optional<Duration> retryDelay = Optional.empty();
    try {
      for (Any packed : status.getDetailsList()) {
        if (packed.is(ErrorInfo.class)) {
          ErrorInfo info = packed.unpack(ErrorInfo.class);
          reason = info.getReason();
          metadata = Map.copyOf(info.getMetadataMap());
        } else if (packed.is(BadRequest.class)) {
          packed
              .unpack(BadRequest.class)
              .getFieldViolationsList()
              .forEach(one -> fields.put(one.getField(), one.getDescription()));
        } else if (packed.is(RetryInfo.class)) {
          retryDelay = Optional.of(Times.duration(packed.unpack(RetryInfo.class).getRetryDelay()));
        }
      }
    } catch (InvalidProtocolBufferException malformed) {
      // The status and its message are true all the same.
      error.addSuppressed(malformed);
    }
    return PalimpsestException.of(
        new Details(
            error.getStatus().getCode(), status.getMessage(), reason, metadata, fields, retryDelay),
        error);
  }

  /** Returns the client's error for a refusal within a message. */
  static PalimpsestException of(ErrorStatus status) {
    Details details =
        new Details(
            Status.fromCodeValue(status.getCode()).getCode(),
            status.getMessage(),
            status.getReason().name().replace("ERROR_REASON_", ""),
            status.getMetadataMap(),
            Map.of(),
            Optional.empty());
    return PalimpsestException.of(details, null);
  }

  /** Returns the error of a thread that was interrupted, which stays marked so. */
  static PalimpsestException interrupted(InterruptedException error) {
    Thread.currentThread().interrupt();
    return PalimpsestException.of(
        Details.of(Status.Code.CANCELLED, "the thread was interrupted"), error);
  }

  private static PalimpsestException withoutDetails(StatusRuntimeException error, String address) {
    Status status = error.getStatus();
    String said = Optional.ofNullable(status.getDescription()).orElse("");
    String message =
        switch (status.getCode()) {
          case UNAVAILABLE -> unreached(error, address);
          case DEADLINE_EXCEEDED -> "no reply from " + address + " in time";
          case UNIMPLEMENTED ->
              "the service at "
                  + address
                  + " has no such method: it is older than this client, or it is no Palimpsest";
          default -> said.isEmpty() ? "the call ended with " + status.getCode() : said;
        };
    Details details = Details.of(status.getCode(), message);
    return status.getCode() == Status.Code.UNAVAILABLE
        ? new ConnectionFailed(details, error)
        : PalimpsestException.of(details, error);
  }

  private static String unreached(Throwable error, String address) {
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      String said = String.valueOf(cause.getMessage());
      for (Map.Entry<String, String> one : HANDSHAKES.entrySet()) {
        if (said.contains(one.getKey())) {
          return address + " " + one.getValue();
        }
      }
    }
    return "cannot reach Palimpsest at "
        + address
        + "; start it with `palimpsest up`, or name the address where it listens"
        + " (PALIMPSEST_ADDRESS)";
  }

  /** Returns whether certainly no work was done, so that any call may be repeated. */
  static boolean isUnbegun(PalimpsestException error) {
    return UNBEGUN.contains(error.reason());
  }

  /** Returns whether a call or a stream that ended with this error may be made again. */
  static boolean mayPass(PalimpsestException error) {
    boolean withoutReason = error.reason().isEmpty();
    return switch (error.code()) {
      case UNAVAILABLE -> true;
      // A server that stops cancels its calls, and a lost connection ends them, without a reason.
      case CANCELLED, INTERNAL -> withoutReason && !Thread.currentThread().isInterrupted();
      case RESOURCE_EXHAUSTED -> error.retryDelay().isPresent();
      default -> false;
    };
  }

  /** Returns whether an answer can be resumed after a call that ended with this error. */
  static boolean mayResume(PalimpsestException error) {
    return error.code() == Status.Code.RESOURCE_EXHAUSTED ? isUnbegun(error) : mayPass(error);
  }

  /** Returns whether a request has certainly stored nothing. */
  static boolean isRefused(PalimpsestException error) {
    return switch (error.code()) {
      case ABORTED, ALREADY_EXISTS, FAILED_PRECONDITION, INVALID_ARGUMENT, NOT_FOUND -> true;
      default -> false;
    };
  }
}
