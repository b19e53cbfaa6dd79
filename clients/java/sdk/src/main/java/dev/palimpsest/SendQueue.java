package dev.palimpsest;

import dev.palimpsest.PalimpsestException.Details;
import dev.palimpsest.PalimpsestException.InvalidArgument;
import dev.palimpsest.v1.AppendChunksRequest;
import dev.palimpsest.v1.AppendChunksResponse;
import dev.palimpsest.v1.Chunk;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The unacked chunks of a producer, in order; lost ones are sent again under the same sequence.
 *
 * <p>It has no lock: {@link Producer} guards it.
 */
final class SendQueue {
  private static final int MAX_CHUNK_BYTES = Chunks.MAX_SENT_BYTES - 1024;

  /** The chunk of a batch that a refusal names. */
  private static final Pattern CHUNK = Pattern.compile("^(?:batch\\.)?chunks\\[(\\d+)\\]");

  /** How long a chunk waits for more of them while others are under way. */
  private static final long LINGER_NANOS = 5_000_000;

  private record Sent(Chunk chunk, int sizeBytes, long sinceNanos) {}

  private final Deque<Sent> waiting = new ArrayDeque<>();
  private final Deque<Sent> underWay = new ArrayDeque<>();
  private AppendChunksResponse.Credits credits =
      AppendChunksResponse.Credits.newBuilder().setChunks(1).setBytes(1).build();
  private long bytes;
  private long nextSequence = 1;
  private long ackedSequence;
  private boolean opened;
  private Optional<Producer.Ack> lastAck = Optional.empty();

  boolean isOpened() {
    return opened;
  }

  long ackedSequence() {
    return ackedSequence;
  }

  long lastSequence() {
    return nextSequence - 1;
  }

  Optional<Producer.Ack> lastAck() {
    return lastAck;
  }

  boolean isEmpty() {
    return waiting.isEmpty() && underWay.isEmpty();
  }

  /**
   * Returns how long to wait for more before the next batch; nothing when there is nothing to send.
   * What waits while a batch is being written goes into the next one.
   */
  OptionalLong lingerNanos() {
    if (waiting.isEmpty()) {
      return OptionalLong.empty();
    }
    boolean isFull = underWay.isEmpty() || waiting.size() >= Chunks.BATCH_CHUNKS;
    long waited = System.nanoTime() - waiting.peek().sinceNanos();
    return OptionalLong.of(isFull ? 0 : Math.max(LINGER_NANOS - waited, 0));
  }

  /** Returns how much credit the chunk takes. Throws InvalidArgument for a bad one. */
  int check(Chunk chunk) {
    Map<String, String> which = Map.of("producer_sequence", String.valueOf(nextSequence));
    int whole = chunk.getSerializedSize();
    if (whole > MAX_CHUNK_BYTES) {
      String message =
          "a chunk has "
              + whole
              + " bytes; no message holds more than "
              + MAX_CHUNK_BYTES
              + " of one";
      throw new InvalidArgument(Details.of("CHUNK_TOO_LARGE", which, message), null);
    }
    Chunks.check(chunk, "append " + nextSequence, which);
    return Chunks.sizeBytes(chunk);
  }

  /** Returns whether a chunk of this size may be put now. */
  boolean hasCredit(int sizeBytes) {
    int count = waiting.size() + underWay.size();
    return count == 0 || (count < credits.getChunks() && bytes + sizeBytes <= credits.getBytes());
  }

  /** Adds a chunk; returns its sequence. */
  long put(Chunk chunk, int sizeBytes) {
    long sequence = nextSequence++;
    Chunk numbered = Chunks.digested(chunk).setProducerSequence(sequence).build();
    waiting.add(new Sent(numbered, sizeBytes, System.nanoTime()));
    bytes += sizeBytes;
    return sequence;
  }

  /** Returns what to send next. */
  AppendChunksRequest.Batch nextBatch() {
    AppendChunksRequest.Batch.Builder batch = AppendChunksRequest.Batch.newBuilder();
    long size = 0;
    while (!waiting.isEmpty() && batch.getChunksCount() < Chunks.BATCH_CHUNKS) {
      size += waiting.peek().sizeBytes();
      if (batch.getChunksCount() > 0 && size > Chunks.BATCH_BYTES) {
        break;
      }
      Sent sent = waiting.remove();
      underWay.add(sent);
      batch.addChunks(sent.chunk());
    }
    return batch.build();
  }

  /** Begins a stream, which sends unacked chunks again. */
  void begin(AppendChunksResponse.Opened message) {
    credits = message.getCredits();
    while (!underWay.isEmpty()) {
      waiting.addFirst(underWay.removeLast());
    }
    // Also if their numbers are durable: that writes nothing, repeats the lost ack, and is
    // refused if another process sent other content.
    if (!opened) {
      ackedSequence = message.getLastProducerSequence();
      nextSequence = ackedSequence + 1;
      opened = true;
    }
  }

  /** Forgets durable chunks. */
  void take(AppendChunksResponse.Ack message) {
    ackedSequence = message.getThroughProducerSequence();
    lastAck =
        Optional.of(
            new Producer.Ack(ackedSequence, message.getThroughPosition(), message.getReadToken()));
    while (!underWay.isEmpty() && underWay.peek().chunk().getProducerSequence() <= ackedSequence) {
      bytes -= underWay.remove().sizeBytes();
    }
  }

  /** Returns a refusal with the number of the append that it names, if any. */
  PalimpsestException refusal(PalimpsestException error) {
    Optional<String> number =
        Optional.ofNullable(error.metadata().get("producer_sequence"))
            .or(
                () ->
                    error.fields().keySet().stream()
                        .map(CHUNK::matcher)
                        .filter(Matcher::find)
                        .map(one -> Long.parseLong(one.group(1)))
                        .filter(one -> !underWay.isEmpty())
                        // All batches before the refused one are acked.
                        .map(one -> underWay.peek().chunk().getProducerSequence() + one)
                        .map(String::valueOf)
                        .findFirst());
    if (number.isEmpty()) {
      return error;
    }
    String message =
        "append %s was refused: %s. It has ended this producer; what was appended up to %d is durable"
            .formatted(number.get(), error.getMessage(), ackedSequence);
    return PalimpsestException.reworded(error, message, Map.of("producer_sequence", number.get()));
  }
}
