package dev.palimpsest;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import com.google.protobuf.Timestamp;
import com.google.protobuf.Value;
import com.google.rpc.Code;
import dev.palimpsest.v1.Answer;
import dev.palimpsest.v1.AnswerServiceGrpc;
import dev.palimpsest.v1.AskEvent;
import dev.palimpsest.v1.AskManyRequest;
import dev.palimpsest.v1.AuditEvent;
import dev.palimpsest.v1.GetOperationRequest;
import dev.palimpsest.v1.Memory;
import dev.palimpsest.v1.MemoryServiceGrpc;
import dev.palimpsest.v1.OperationServiceGrpc;
import dev.palimpsest.v1.OperationState;
import dev.palimpsest.v1.RebuildMemoryRequest;
import dev.palimpsest.v1.RedactChunksRequest;
import dev.palimpsest.v1.RedactChunksResponse;
import dev.palimpsest.v1.ResumeAnswerRequest;
import dev.palimpsest.v1.SessionServiceGrpc;
import dev.palimpsest.v1.WaitOperationRequest;
import io.grpc.Status;
import io.grpc.stub.StreamObserver;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(30)
class OperationsTest {

  private static dev.palimpsest.v1.Operation operation(OperationState state) {
    dev.palimpsest.v1.Operation.Builder operation =
        dev.palimpsest.v1.Operation.newBuilder().setId("o").setState(state);
    if (state == OperationState.OPERATION_STATE_DONE) {
      operation.getMemoryResultBuilder().setId("facts-2");
    } else if (state == OperationState.OPERATION_STATE_FAILED) {
      operation.getErrorBuilder().setCode(Code.FAILED_PRECONDITION_VALUE).setMessage("it failed");
    }
    return operation.build();
  }

  /** Ends an operation with a state after a lost connection. */
  private static final class Operations extends OperationServiceGrpc.OperationServiceImplBase {
    private final OperationState end;
    int waits;

    Operations(OperationState end) {
      this.end = end;
    }

    @Override
    public void getOperation(
        GetOperationRequest request, StreamObserver<dev.palimpsest.v1.Operation> replies) {
      replies.onNext(operation(OperationState.OPERATION_STATE_RUNNING));
      replies.onCompleted();
    }

    @Override
    public void waitOperation(
        WaitOperationRequest request, StreamObserver<dev.palimpsest.v1.Operation> replies) {
      waits++;
      replies.onNext(operation(OperationState.OPERATION_STATE_RUNNING));
      if (waits == 1) {
        replies.onError(Status.UNAVAILABLE.asRuntimeException());
      } else if (end != OperationState.OPERATION_STATE_RUNNING) {
        replies.onNext(operation(end));
        replies.onCompleted();
      }
    }
  }

  @Test
  void aWaitContinuesAfterALostConnection() throws Exception {
    Operations operations = new Operations(OperationState.OPERATION_STATE_DONE);
    List<OperationState> seen = new ArrayList<>();
    try (FakeService service = new FakeService(operations)) {
      var ended =
          service
              .client
              .operation("o")
              .await(Duration.ofSeconds(20), one -> seen.add(one.getState()));
      assertEquals("facts-2", ended.getMemoryResult().getId());
    }
    assertEquals(2, operations.waits);
    assertEquals(OperationState.OPERATION_STATE_DONE, seen.get(2));
  }

  @Test
  void aWaitThrowsWhatEndedTheOperation() throws Exception {
    try (FakeService service =
        new FakeService(new Operations(OperationState.OPERATION_STATE_FAILED))) {
      Operation operation = service.client.operation("o");
      assertThrows(PalimpsestException.FailedPrecondition.class, operation::await);
      assertTrue(operation.hasEnded());
    }
    try (FakeService service =
        new FakeService(new Operations(OperationState.OPERATION_STATE_CANCELLED))) {
      assertThrows(PalimpsestException.Cancelled.class, service.client.operation("o")::await);
    }
  }

  @Test
  void aWaitEndsInTime() throws Exception {
    try (FakeService service =
        new FakeService(new Operations(OperationState.OPERATION_STATE_RUNNING))) {
      Operation operation = service.client.operation("o");
      var late =
          assertThrows(
              PalimpsestException.DeadlineExceeded.class,
              () -> operation.await(Duration.ofMillis(300)));
      assertEquals("OPERATION_NOT_ENDED_IN_TIME", late.reason());
    }
  }

  @Test
  void aRebuildChangesWhatIsSet() throws Exception {
    List<RebuildMemoryRequest> requests = new ArrayList<>();
    var memories =
        new MemoryServiceGrpc.MemoryServiceImplBase() {
          @Override
          public void rebuildMemory(
              RebuildMemoryRequest request, StreamObserver<dev.palimpsest.v1.Operation> replies) {
            requests.add(request);
            replies.onNext(operation(OperationState.OPERATION_STATE_PENDING));
            replies.onCompleted();
          }
        };
    try (FakeService service = new FakeService(memories)) {
      service
          .client
          .session("s")
          .memory("facts")
          .rebuild("facts-2", wanted -> wanted.getPrismBuilder().setTask("Dates."));
    }
    Memory wanted = requests.get(0).getNewMemory();
    assertEquals("s facts-2", wanted.getSession() + " " + wanted.getId());
    assertEquals(List.of("prism.task"), requests.get(0).getUpdateMask().getPathsList());
  }

  /** Names three questions, answers one, refuses one, and loses the connection. */
  private static final class Answers extends AnswerServiceGrpc.AnswerServiceImplBase {
    final List<Integer> asked = new ArrayList<>();

    @Override
    public void askMany(AskManyRequest request, StreamObserver<AskEvent> replies) {
      asked.add(request.getQuestionsCount());
      AskEvent.Builder reading = AskEvent.newBuilder().setIndex(0);
      reading.getReadingBuilder().setAnswer("a0");
      replies.onNext(reading.build());
      if (request.getQuestionsCount() == 3) {
        AskEvent.Builder answer = AskEvent.newBuilder().setIndex(1);
        answer.getAnswerBuilder().setText("one");
        replies.onNext(answer.build());
        AskEvent.Builder error = AskEvent.newBuilder().setIndex(2);
        error.getErrorBuilder().setCode(Code.FAILED_PRECONDITION_VALUE).setMessage("it failed");
        replies.onNext(error.build());
      }
      replies.onError(Status.UNAVAILABLE.asRuntimeException());
    }

    @Override
    public void resumeAnswer(ResumeAnswerRequest request, StreamObserver<AskEvent> replies) {
      replies.onNext(
          AskEvent.newBuilder()
              .setAnswer(Answer.newBuilder().setText("of " + request.getAnswer()))
              .build());
      replies.onCompleted();
    }
  }

  @Test
  void manyQuestionsEndEachInItsOwnWay() throws Exception {
    Answers answers = new Answers();
    try (FakeService service = new FakeService(answers)) {
      List<AskResult> results = service.client.session("s").askAll(List.of("a", "b", "c"));
      assertEquals("of a0", results.get(0).answer().getText());
      assertEquals("one", results.get(1).answer().getText());
      assertThrows(PalimpsestException.FailedPrecondition.class, results.get(2)::answer);
      // What was not named before the connection was lost has that error.
      List<AskResult> more =
          service.client.session("s").askAll(java.util.Collections.nCopies(34, "a"));
      assertEquals("of a0", more.get(32).answer().getText());
      assertTrue(more.get(33).error().orElseThrow() instanceof PalimpsestException.Unavailable);
    }
    assertEquals(List.of(3, 32, 2), answers.asked);
  }

  @Test
  void whatIsForgottenIsSaidInOneWay() throws Exception {
    List<RedactChunksRequest> requests = new ArrayList<>();
    var sessions =
        new SessionServiceGrpc.SessionServiceImplBase() {
          @Override
          public void redactChunks(
              RedactChunksRequest request, StreamObserver<RedactChunksResponse> replies) {
            requests.add(request);
            replies.onNext(RedactChunksResponse.getDefaultInstance());
            replies.onCompleted();
          }
        };
    try (FakeService service = new FakeService(sessions)) {
      Session session = service.client.session("s");
      assertThrows(
          IllegalArgumentException.class, () -> session.forget(what -> what.reason("asked for")));
      assertThrows(
          IllegalArgumentException.class,
          () -> session.forget(what -> what.thread("t").source("web:a")));
      assertThrows(
          IllegalArgumentException.class,
          () -> session.forget(what -> what.text("one").text("two")));
      session.forget(what -> what.position(3).positions(5, 7).dryRun());
    }
    assertEquals(1, requests.size());
    assertEquals(2, requests.get(0).getPositions().getRangesCount());
    assertTrue(requests.get(0).getValidateOnly());
    assertFalse(requests.get(0).hasKeepOut());
  }

  /** The event and its digest are those of the Python client. */
  @Test
  void anAuditChainBreaksWhereAnEventIsChanged() {
    AuditEvent.Builder event =
        AuditEvent.newBuilder()
            .setSequence(1)
            .setOccurredAt(Timestamp.newBuilder().setSeconds(1_777_627_800).setNanos(250_000_000))
            .setPrincipal("key:1")
            .setAction("key.create")
            .setTarget("a\"b\\\n\u2028é\u0001")
            .setTenantUid("u");
    event
        .getDetailsBuilder()
        .putFields("b", Value.newBuilder().setNumberValue(7).build())
        .putFields("a", Value.newBuilder().setBoolValue(true).build());
    String digest = "9296d21671fe8a52145310f334c4105b7e935ccf84b96eb99618ecdc8b333ed5";
    event.setDigest(ByteString.copyFrom(HexFormat.of().parseHex(digest)));
    AuditChain chain = new AuditChain();
    assertTrue(chain.add(event.build()), AuditChain.canonical(event.build()));
    assertEquals(1, chain.sequence());
    assertFalse(chain.add(event.setSequence(2).build()));
    assertFalse(new AuditChain().add(event.setSequence(1).setAction("key.revoke").build()));
  }
}
