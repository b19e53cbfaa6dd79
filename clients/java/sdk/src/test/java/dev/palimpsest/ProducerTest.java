package dev.palimpsest;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.rpc.Code;
import dev.palimpsest.v1.AppendChunksRequest;
import dev.palimpsest.v1.AppendChunksResponse;
import dev.palimpsest.v1.Chunk;
import dev.palimpsest.v1.SessionServiceGrpc;
import io.grpc.Status;
import io.grpc.stub.StreamObserver;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(30)
class ProducerTest {

  /** A log of one producer, whose streams a test cuts, refuses or holds back. */
  private static class Log extends SessionServiceGrpc.SessionServiceImplBase {
    final Map<Long, String> texts = new TreeMap<>();
    final List<Integer> batches = new ArrayList<>();
    int credits = 1000;
    int streams;

    /** Does what a stream does with a batch that was written; cuts it with an error. */
    void afterWrite(int stream, StreamObserver<AppendChunksResponse> replies) {
      ack(replies);
    }

    synchronized void ack(StreamObserver<AppendChunksResponse> replies) {
      AppendChunksResponse.Ack.Builder ack =
          AppendChunksResponse.Ack.newBuilder()
              .setThroughProducerSequence(texts.size())
              .setThroughPosition(texts.size());
      replies.onNext(AppendChunksResponse.newBuilder().setAck(ack).build());
    }

    @Override
    public synchronized StreamObserver<AppendChunksRequest> appendChunks(
        StreamObserver<AppendChunksResponse> replies) {
      int stream = ++streams;
      return new StreamObserver<>() {
        @Override
        public void onNext(AppendChunksRequest request) {
          synchronized (Log.this) {
            if (request.hasOpen()) {
              AppendChunksResponse.Builder opened = AppendChunksResponse.newBuilder();
              opened.getOpenedBuilder().setLastProducerSequence(texts.size());
              opened.getOpenedBuilder().getCreditsBuilder().setChunks(credits).setBytes(1 << 20);
              replies.onNext(opened.build());
              return;
            }
            batches.add(request.getBatch().getChunksCount());
            for (Chunk chunk : request.getBatch().getChunksList()) {
              texts.put(chunk.getProducerSequence(), chunk.getText());
            }
          }
          afterWrite(stream, replies);
        }

        @Override
        public void onError(Throwable error) {}

        @Override
        public void onCompleted() {
          replies.onCompleted();
        }
      };
    }
  }

  @Test
  void whatWasNotAckedIsSentAgainUnderTheSameSequence() throws Exception {
    Log log =
        new Log() {
          @Override
          void afterWrite(int stream, StreamObserver<AppendChunksResponse> replies) {
            if (stream <= 2) {
              // The batch is durable, and its ack is lost.
              replies.onError(Status.UNAVAILABLE.asRuntimeException());
            } else {
              ack(replies);
            }
          }
        };
    try (FakeService service = new FakeService(log)) {
      try (Producer producer = service.client.session("s").producer("p")) {
        for (int number = 1; number <= 50; number++) {
          assertEquals(number, producer.append("text " + number));
        }
        assertEquals(50, producer.flush().orElseThrow().producerSequence());
      }
    }
    assertTrue(log.streams >= 3, "the stream was opened again");
    assertEquals(50, log.texts.size());
    log.texts.forEach((sequence, text) -> assertEquals("text " + sequence, text));
  }

  @Test
  void aProducerThatIsOpenedAgainContinuesAfterTheDurableChunks() throws Exception {
    Log log = new Log();
    try (FakeService service = new FakeService(log)) {
      try (Producer first = service.client.session("s").producer("p")) {
        first.append("one");
        first.append("two");
      }
      try (Producer second = service.client.session("s").producer("p")) {
        assertEquals(2, second.lastAckedSequence());
        assertEquals(3, second.append("three"));
      }
    }
    assertEquals(List.of("one", "two", "three"), List.copyOf(log.texts.values()));
  }

  @Test
  void nothingIsDurableBeforeItsAck() throws Exception {
    CountDownLatch written = new CountDownLatch(1);
    CountDownLatch released = new CountDownLatch(1);
    Log log =
        new Log() {
          @Override
          void afterWrite(int stream, StreamObserver<AppendChunksResponse> replies) {
            written.countDown();
            CompletableFuture.runAsync(
                () -> {
                  try {
                    assertTrue(released.await(20, TimeUnit.SECONDS));
                  } catch (InterruptedException error) {
                    throw new AssertionError(error);
                  }
                  ack(replies);
                });
          }
        };
    try (FakeService service = new FakeService(log);
        Producer producer = service.client.session("s").producer("p")) {
      producer.append("one");
      assertTrue(written.await(20, TimeUnit.SECONDS));
      CompletableFuture<?> flushed = CompletableFuture.supplyAsync(producer::flush);
      assertThrows(
          java.util.concurrent.TimeoutException.class,
          () -> flushed.get(100, TimeUnit.MILLISECONDS));
      assertEquals(0, producer.lastAckedSequence());
      released.countDown();
      flushed.get(20, TimeUnit.SECONDS);
      assertEquals(1, producer.lastAckedSequence());
    }
  }

  @Test
  void manyChunksGoIntoFewBatches() throws Exception {
    Log log = new Log();
    try (FakeService service = new FakeService(log);
        Producer producer = service.client.session("s").producer("p")) {
      for (int number = 1; number <= 900; number++) {
        producer.append("text");
      }
      producer.flush();
      assertEquals(900, producer.lastAckedSequence());
    }
    assertTrue(log.batches.size() < 300, "batches: " + log.batches);
  }

  @Test
  void anAppendWaitsWhileThereIsNoCredit() throws Exception {
    CountDownLatch released = new CountDownLatch(1);
    Log log =
        new Log() {
          @Override
          void afterWrite(int stream, StreamObserver<AppendChunksResponse> replies) {
            CompletableFuture.runAsync(
                () -> {
                  try {
                    assertTrue(released.await(20, TimeUnit.SECONDS));
                  } catch (InterruptedException error) {
                    throw new AssertionError(error);
                  }
                  ack(replies);
                });
          }
        };
    log.credits = 2;
    try (FakeService service = new FakeService(log);
        Producer producer = service.client.session("s").producer("p")) {
      producer.append("one");
      producer.append("two");
      CompletableFuture<Long> third = CompletableFuture.supplyAsync(() -> producer.append("three"));
      assertThrows(
          java.util.concurrent.TimeoutException.class, () -> third.get(200, TimeUnit.MILLISECONDS));
      assertFalse(third.isDone());
      released.countDown();
      assertEquals(3, third.get(20, TimeUnit.SECONDS));
    }
    assertEquals(3, log.texts.size());
  }

  @Test
  void aFencedProducerSaysSoOnceAndIsClosed() throws Exception {
    Log log =
        new Log() {
          @Override
          void afterWrite(int stream, StreamObserver<AppendChunksResponse> replies) {
            replies.onError(
                FakeService.refusal(Code.ABORTED_VALUE, "PRODUCER_FENCED", Map.of("epoch", "7")));
          }
        };
    try (FakeService service = new FakeService(log)) {
      Producer producer = service.client.session("s").producer("p");
      producer.append("one");
      PalimpsestException.ProducerFenced fenced =
          assertThrows(PalimpsestException.ProducerFenced.class, producer::flush);
      assertEquals("7", fenced.metadata().get("epoch"));
      assertThrows(PalimpsestException.ProducerClosed.class, () -> producer.append("two"));
      producer.close();
    }
    assertEquals(1, log.streams);
  }

  @Test
  void aBadChunkLeavesOthersUnaffected() throws Exception {
    Log log = new Log();
    try (FakeService service = new FakeService(log);
        Producer producer = service.client.session("s").producer("p")) {
      producer.append("one");
      PalimpsestException.InvalidArgument error =
          assertThrows(PalimpsestException.InvalidArgument.class, () -> producer.append("a\0b"));
      assertEquals("FIELD_INVALID", error.reason());
      assertEquals(2, producer.append("two"));
    }
    assertEquals(List.of("one", "two"), List.copyOf(log.texts.values()));
  }

  @Test
  void aServiceThatStaysAwayEndsTheProducer() throws Exception {
    Log log =
        new Log() {
          @Override
          void afterWrite(int stream, StreamObserver<AppendChunksResponse> replies) {
            replies.onError(Status.UNAVAILABLE.asRuntimeException());
          }
        };
    try (FakeService service = new FakeService(log)) {
      Producer producer =
          service.client.session("s").producer("p", Duration.ofMillis(300), open -> {});
      producer.append("one");
      assertThrows(PalimpsestException.Unavailable.class, producer::flush);
      producer.close();
    }
  }
}
