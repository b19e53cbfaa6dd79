package dev.palimpsest;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.google.rpc.Code;
import dev.palimpsest.v1.AnswerServiceGrpc;
import dev.palimpsest.v1.AskEvent;
import dev.palimpsest.v1.AskRequest;
import dev.palimpsest.v1.MemoryServiceGrpc;
import dev.palimpsest.v1.ResumeAnswerRequest;
import dev.palimpsest.v1.WatchMemoryRequest;
import dev.palimpsest.v1.WatchMemoryResponse;
import io.grpc.Status;
import io.grpc.stub.StreamObserver;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(30)
class StreamsTest {

  private static AskEvent text(int ordinal, String text) {
    AskEvent.Builder event = AskEvent.newBuilder();
    event.getTextBuilder().setOrdinal(ordinal).setText(text);
    return event.build();
  }

  private static AskEvent reading(String answer) {
    AskEvent.Builder event = AskEvent.newBuilder();
    event.getReadingBuilder().setAnswer(answer);
    return event.build();
  }

  @Test
  void anAnswerIsResumedAfterTheLastPiece() throws Exception {
    List<ResumeAnswerRequest> resumed = new ArrayList<>();
    var answers =
        new AnswerServiceGrpc.AnswerServiceImplBase() {
          @Override
          public void ask(AskRequest request, StreamObserver<AskEvent> replies) {
            replies.onNext(reading("a1"));
            replies.onNext(text(1, "It is "));
            replies.onError(Status.UNAVAILABLE.asRuntimeException());
          }

          @Override
          public void resumeAnswer(ResumeAnswerRequest request, StreamObserver<AskEvent> replies) {
            resumed.add(request);
            // A piece that is known comes once more.
            replies.onNext(text(1, "It is "));
            replies.onNext(text(2, "Oslo."));
            AskEvent.Builder event = AskEvent.newBuilder();
            event.getAnswerBuilder().setId("a1").setText("It is Oslo.");
            replies.onNext(event.build());
            replies.onCompleted();
          }
        };
    try (FakeService service = new FakeService(answers);
        AnswerStream stream = service.client.session("s").streamAsk("Where?")) {
      assertEquals("a1", stream.answerId());
      assertThrows(IllegalStateException.class, stream::answer);
      StringBuilder text = new StringBuilder();
      stream.forEachRemaining(piece -> text.append(piece.getText()));
      assertEquals("It is Oslo.", text.toString());
      assertEquals("It is Oslo.", stream.answer().getText());
    }
    assertEquals(1, resumed.size());
    assertEquals(1, resumed.get(0).getAfterText());
  }

  @Test
  void aQuestionThatMayHaveBegunIsNotAskedAgain() throws Exception {
    List<AskRequest> asked = new ArrayList<>();
    var answers =
        new AnswerServiceGrpc.AnswerServiceImplBase() {
          @Override
          public void ask(AskRequest request, StreamObserver<AskEvent> replies) {
            asked.add(request);
            replies.onError(Status.UNAVAILABLE.asRuntimeException());
          }
        };
    try (FakeService service = new FakeService(answers)) {
      Session session = service.client.session("s");
      assertThrows(PalimpsestException.ConnectionFailed.class, () -> session.ask("Where?"));
    }
    assertEquals(1, asked.size());
  }

  /** A memory whose watches are cut after two revisions. */
  private static final class Revisions extends MemoryServiceGrpc.MemoryServiceImplBase {
    final List<String> tokens = new ArrayList<>();

    @Override
    public synchronized void watchMemory(
        WatchMemoryRequest request, StreamObserver<WatchMemoryResponse> replies) {
      tokens.add(request.getResumeToken());
      int after =
          request.getResumeToken().isEmpty() ? 0 : Integer.parseInt(request.getResumeToken());
      replies.onNext(response(after).clearRevision().build());
      for (int revision = after + 1; revision <= after + 2; revision++) {
        replies.onNext(response(revision).build());
      }
      if (after < 4) {
        replies.onError(Status.UNAVAILABLE.asRuntimeException());
      }
    }

    private static WatchMemoryResponse.Builder response(int revision) {
      WatchMemoryResponse.Builder response = WatchMemoryResponse.newBuilder();
      response.getRevisionBuilder().setRevision(revision);
      return response.setResumeToken(String.valueOf(revision));
    }
  }

  @Test
  void aWatchContinuesAfterTheLastRevision() throws Exception {
    Revisions memories = new Revisions();
    try (FakeService service = new FakeService(memories)) {
      Watch watch = service.client.session("s").memory("m").watch();
      List<Long> seen = new ArrayList<>();
      while (seen.size() < 6) {
        seen.add(watch.next().getRevision().getRevision());
      }
      assertEquals(List.of(1L, 2L, 3L, 4L, 5L, 6L), seen);
      assertEquals("6", watch.resumeToken());
      assertEquals(List.of("", "2", "4"), memories.tokens);

      CompletableFuture<Boolean> more = CompletableFuture.supplyAsync(watch::hasNext);
      watch.close();
      assertFalse(more.get(20, TimeUnit.SECONDS));
    }
  }

  @Test
  void aWatchOfWhatIsNotThereIsRefused() throws Exception {
    var memories =
        new MemoryServiceGrpc.MemoryServiceImplBase() {
          @Override
          public void watchMemory(
              WatchMemoryRequest request, StreamObserver<WatchMemoryResponse> replies) {
            replies.onError(
                FakeService.refusal(Code.NOT_FOUND_VALUE, "MEMORY_NOT_FOUND", Map.of()));
          }
        };
    try (FakeService service = new FakeService(memories)) {
      Memory<?> memory = service.client.session("s").memory("m");
      assertEquals(
          "MEMORY_NOT_FOUND",
          assertThrows(PalimpsestException.NotFound.class, memory::watch).reason());
    }
  }
}
