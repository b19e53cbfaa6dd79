package dev.palimpsest;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.rpc.Code;
import dev.palimpsest.v1.AccessServiceGrpc;
import dev.palimpsest.v1.AppendRequest;
import dev.palimpsest.v1.AppendResponse;
import dev.palimpsest.v1.CreateApiKeyRequest;
import dev.palimpsest.v1.CreateApiKeyResponse;
import dev.palimpsest.v1.GetSessionRequest;
import dev.palimpsest.v1.Scope;
import dev.palimpsest.v1.SessionServiceGrpc;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.StreamObserver;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Which errors a call is repeated after, and that a timeout ends it. */
@Timeout(30)
class RetriesTest {

  /** Fails the first call with an error, and answers the second. */
  private static final class Failing extends SessionServiceGrpc.SessionServiceImplBase {
    private final StatusRuntimeException error;
    final List<Object> requests = new ArrayList<>();

    Failing(StatusRuntimeException error) {
      this.error = error;
    }

    private <T> void reply(Object request, T response, StreamObserver<T> replies) {
      requests.add(request);
      if (requests.size() == 1) {
        replies.onError(error);
        return;
      }
      replies.onNext(response);
      replies.onCompleted();
    }

    @Override
    public void getSession(
        GetSessionRequest request, StreamObserver<dev.palimpsest.v1.Session> replies) {
      reply(request, dev.palimpsest.v1.Session.getDefaultInstance(), replies);
    }

    @Override
    public void append(AppendRequest request, StreamObserver<AppendResponse> replies) {
      reply(request, AppendResponse.getDefaultInstance(), replies);
    }
  }

  private static StatusRuntimeException refusal(Code code, String reason) {
    return FakeService.refusal(code.getNumber(), reason, Map.of());
  }

  static Stream<StatusRuntimeException> passing() {
    return Stream.of(
        Status.UNAVAILABLE.asRuntimeException(),
        Status.CANCELLED.asRuntimeException(),
        Status.INTERNAL.asRuntimeException(),
        refusal(Code.UNAVAILABLE, "SHUTTING_DOWN"),
        FakeService.refusal(
            Code.RESOURCE_EXHAUSTED_VALUE, "QUOTA_EXHAUSTED", Duration.ofMillis(20)));
  }

  @ParameterizedTest
  @MethodSource("passing")
  void whatMayPassIsTriedAgain(StatusRuntimeException error) throws Exception {
    Failing failing = new Failing(error);
    try (FakeService service = new FakeService(failing)) {
      service.client.session("s").info();
      service.client.session("s").append(Chunks.text("one"));
    }
    assertEquals(3, failing.requests.size());
  }

  static Stream<StatusRuntimeException> lasting() {
    return Stream.of(
        Status.DEADLINE_EXCEEDED.asRuntimeException(),
        Status.UNKNOWN.asRuntimeException(),
        Status.RESOURCE_EXHAUSTED.asRuntimeException(),
        refusal(Code.RESOURCE_EXHAUSTED, "BUDGET_EXHAUSTED"),
        refusal(Code.CANCELLED, "ANSWER_CANCELLED"),
        refusal(Code.INTERNAL, "INTERNAL"),
        refusal(Code.ABORTED, "HEAD_MISMATCH"),
        refusal(Code.NOT_FOUND, "SESSION_NOT_FOUND"),
        refusal(Code.FAILED_PRECONDITION, "MEMORY_STALLED"),
        refusal(Code.INVALID_ARGUMENT, "FIELD_INVALID"),
        refusal(Code.PERMISSION_DENIED, "SCOPE_MISSING"),
        refusal(Code.UNAUTHENTICATED, "CREDENTIALS_INVALID"));
  }

  @ParameterizedTest
  @MethodSource("lasting")
  void whatLastsIsNotTriedAgain(StatusRuntimeException error) throws Exception {
    Failing failing = new Failing(error);
    try (FakeService service = new FakeService(failing)) {
      Session session = service.client.session("s");
      PalimpsestException known = assertThrows(PalimpsestException.class, session::info);
      assertEquals(error.getStatus().getCode(), known.code());
    }
    assertEquals(1, failing.requests.size());
  }

  @Test
  void aWriteIsTriedAgainUnderItsOwnRequestId() throws Exception {
    Failing failing = new Failing(Status.UNAVAILABLE.asRuntimeException());
    try (FakeService service = new FakeService(failing)) {
      service
          .client
          .session("s")
          .append(List.of(Chunks.text("one")), request -> request.setRequestId("mine"));
    }
    assertEquals(failing.requests.get(0), failing.requests.get(1));
    assertEquals("mine", ((AppendRequest) failing.requests.get(1)).getRequestId());
  }

  @Test
  void aWriteWithoutARequestIdIsNotTriedAgain() throws Exception {
    List<CreateApiKeyRequest> requests = new ArrayList<>();
    var access =
        new AccessServiceGrpc.AccessServiceImplBase() {
          @Override
          public void createApiKey(
              CreateApiKeyRequest request, StreamObserver<CreateApiKeyResponse> replies) {
            requests.add(request);
            replies.onError(Status.UNAVAILABLE.asRuntimeException());
          }
        };
    try (FakeService service = new FakeService(access)) {
      assertThrows(
          PalimpsestException.Unavailable.class,
          () -> service.client.access().createKey(Set.of(Scope.SCOPE_READ)));
    }
    assertEquals(1, requests.size());
  }

  @Test
  void aTimeoutEndsACallWithoutAReply() throws Exception {
    var silent =
        new SessionServiceGrpc.SessionServiceImplBase() {
          @Override
          public void getSession(
              GetSessionRequest request, StreamObserver<dev.palimpsest.v1.Session> replies) {}
        };
    try (FakeService service = new FakeService(silent)) {
      Session session = service.client.session("s").withTimeout(Duration.ofMillis(100));
      assertThrows(PalimpsestException.DeadlineExceeded.class, session::info);
    }
  }

  @Test
  void aTimeoutEndsTheTriesOfACall() throws Exception {
    List<GetSessionRequest> requests = new ArrayList<>();
    var away =
        new SessionServiceGrpc.SessionServiceImplBase() {
          @Override
          public void getSession(
              GetSessionRequest request, StreamObserver<dev.palimpsest.v1.Session> replies) {
            requests.add(request);
            replies.onError(Status.UNAVAILABLE.asRuntimeException());
          }
        };
    try (FakeService service = new FakeService(away)) {
      Session session = service.client.session("s").withTimeout(Duration.ofMillis(400));
      assertThrows(PalimpsestException.ConnectionFailed.class, session::info);
    }
    // Each pause is longer than the one before; all together are within the timeout.
    assertTrue(requests.size() < 8, "tries: " + requests.size());
  }
}
