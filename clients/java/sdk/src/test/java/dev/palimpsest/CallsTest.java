package dev.palimpsest;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.rpc.Code;
import dev.palimpsest.v1.AppendRequest;
import dev.palimpsest.v1.AppendResponse;
import dev.palimpsest.v1.CreateSessionRequest;
import dev.palimpsest.v1.ListSessionsRequest;
import dev.palimpsest.v1.ListSessionsResponse;
import dev.palimpsest.v1.RecallRequest;
import dev.palimpsest.v1.RecallResponse;
import dev.palimpsest.v1.SessionServiceGrpc;
import io.grpc.Status;
import io.grpc.stub.StreamObserver;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(30)
class CallsTest {

  /** A service without its first session, which loses the first reply of each append. */
  private static final class Sessions extends SessionServiceGrpc.SessionServiceImplBase {
    final List<String> created = new ArrayList<>();
    final List<AppendRequest> appended = new ArrayList<>();

    @Override
    public void append(AppendRequest request, StreamObserver<AppendResponse> replies) {
      if (created.isEmpty()) {
        replies.onError(
            FakeService.refusal(Code.NOT_FOUND_VALUE, "SESSION_NOT_FOUND", Map.of("session", "s")));
        return;
      }
      appended.add(request);
      if (appended.size() % 2 == 1) {
        replies.onError(Status.UNAVAILABLE.asRuntimeException());
        return;
      }
      AppendResponse.Builder response = AppendResponse.newBuilder().setReadToken("t");
      response.getPositionsBuilder().setFirst(1).setLast(1);
      replies.onNext(response.build());
      replies.onCompleted();
    }

    @Override
    public void createSession(
        CreateSessionRequest request, StreamObserver<dev.palimpsest.v1.Session> replies) {
      assertFalse(request.getRequestId().isEmpty());
      created.add(request.getSession().getId());
      replies.onNext(request.getSession());
      replies.onCompleted();
    }

    @Override
    public void listSessions(
        ListSessionsRequest request, StreamObserver<ListSessionsResponse> replies) {
      ListSessionsResponse.Builder page = ListSessionsResponse.newBuilder();
      String token = request.getPageToken();
      page.addSessionsBuilder().setId(token.isEmpty() ? "a" : "b");
      page.setNextPageToken(token.isEmpty() ? "more" : "");
      replies.onNext(page.build());
      replies.onCompleted();
    }

    @Override
    public void recall(RecallRequest request, StreamObserver<RecallResponse> replies) {
      replies.onError(FakeService.refusal(Code.NOT_FOUND_VALUE, "SESSION_NOT_FOUND", Map.of()));
    }
  }

  @Test
  void whatIsRememberedIsTriedAgainUnderOneRequestId() throws Exception {
    Sessions sessions = new Sessions();
    try (FakeService service = new FakeService(sessions)) {
      Remembered done = service.client.session("s").remember("I live in Oslo.");
      assertEquals(List.of("s"), sessions.created);
      assertEquals(2, sessions.appended.size());
      assertEquals(sessions.appended.get(0), sessions.appended.get(1));
      assertEquals(done.requestId(), sessions.appended.get(0).getRequestId());
      assertEquals(1, done.positions().orElseThrow().getFirst());
    }
  }

  @Test
  void pagesAreReadAsNeeded() throws Exception {
    try (FakeService service = new FakeService(new Sessions())) {
      assertEquals(
          List.of("a", "b"),
          service.client.sessions().map(dev.palimpsest.v1.Session::getId).toList());
    }
  }

  @Test
  void nothingIsKnownOfASessionThatDoesNotExist() throws Exception {
    try (FakeService service = new FakeService(new Sessions())) {
      Session session = service.client.session("s");
      assertEquals("", session.recall("Where?").getText());
      assertThrows(
          PalimpsestException.NotFound.class,
          () -> session.recall("Where?", request -> request.addMemories("m")));
    }
  }

  @Test
  void aRefusalHasItsReasonAndIsNotRepeated() throws Exception {
    List<AppendRequest> asked = new ArrayList<>();
    var sessions =
        new SessionServiceGrpc.SessionServiceImplBase() {
          @Override
          public void append(AppendRequest request, StreamObserver<AppendResponse> replies) {
            asked.add(request);
            replies.onError(
                FakeService.refusal(Code.ABORTED_VALUE, "HEAD_MISMATCH", Map.of("head", "3")));
          }
        };
    try (FakeService service = new FakeService(sessions)) {
      Session session = service.client.session("s");
      PalimpsestException error =
          assertThrows(PalimpsestException.Aborted.class, () -> session.append(Chunks.text("one")));
      assertEquals("HEAD_MISMATCH", error.reason());
      assertEquals(Map.of("head", "3"), error.metadata());
      assertEquals(Status.Code.ABORTED, error.code());
      assertFalse(error.isRetryable());
    }
    assertEquals(1, asked.size());
  }

  @Test
  void aServiceThatIsNotThereIsNamedSoon() {
    try (Palimpsest client = Palimpsest.connect("grpc://127.0.0.1:1")) {
      Session session = client.session("s");
      PalimpsestException error =
          assertThrows(PalimpsestException.ConnectionFailed.class, session::info);
      assertTrue(error.getMessage().contains("127.0.0.1:1"), error.getMessage());
      assertTrue(error.isRetryable());
    }
  }
}
