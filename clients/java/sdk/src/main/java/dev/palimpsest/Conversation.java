package dev.palimpsest;

import com.google.gson.JsonPrimitive;
import com.google.protobuf.Timestamp;
import dev.palimpsest.PalimpsestException.InvalidArgument;
import dev.palimpsest.v1.AppendRequest;
import dev.palimpsest.v1.AppendResponse;
import dev.palimpsest.v1.Chunk;
import dev.palimpsest.v1.PositionRange;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Function;
import java.util.function.UnaryOperator;

/**
 * What a conversation is in a log: its chunks, cut where they are long, and the requests that
 * append them.
 *
 * @param chunks in order
 * @param skipped messages of which nothing is kept: instructions, and empty ones
 */
record Conversation(List<Chunk> chunks, int skipped) {
  /** Characters of a piece of plain text: few enough for precise citations. */
  private static final int TEXT_CHARACTERS = 2000;

  /** Characters of a message, or of each part of a step, that stay in one chunk. */
  private static final int TURN_CHARACTERS = 8000;

  private static final Set<Object> EMPTY = Set.of(Chunks.text(""), new JsonPrimitive(""));

  static Conversation of(List<Chunk> messages, RememberOptions options) {
    return of(Messages.of(messages), options);
  }

  static Conversation of(Messages messages, RememberOptions options) {
    List<Object> items = messages.items();
    if (items.isEmpty() || (items.size() == 1 && EMPTY.contains(items.get(0)))) {
      throw new IllegalArgumentException(
          "there is nothing to remember: give a text or at least one message");
    }
    MessageReader read = MessageReader.of(items, 1, options.includeSystem);
    List<Chunk> found = new ArrayList<>();
    for (MessageReader.Numbered one : read.chunks()) {
      String name = "message " + one.number();
      Chunk message = labelled(one.chunk(), options);
      Chunks.checkLabels(message, name);
      for (Chunk piece : pieces(message)) {
        Chunks.check(piece, name, Map.of("message", String.valueOf(one.number())));
        found.add(Chunks.digested(piece).build());
      }
    }
    return new Conversation(List.copyOf(found), read.skipped());
  }

  /** Returns a message with the labels of all, where it has none of its own. */
  private static Chunk labelled(Chunk message, RememberOptions options) {
    Chunk.Builder builder = message.toBuilder().clearMetadata().putAllMetadata(options.metadata);
    builder.putAllMetadata(message.getMetadataMap());
    options.thread.filter(one -> message.getThread().isEmpty()).ifPresent(builder::setThread);
    options.source.filter(one -> message.getSource().isEmpty()).ifPresent(builder::setSource);
    Optional<Timestamp> time = options.occurredAt.map(Times::message);
    time.filter(one -> !message.hasOccurredAt()).ifPresent(builder::setOccurredAt);
    return builder.build();
  }

  private static List<Chunk> pieces(Chunk chunk) {
    return switch (chunk.getContentCase()) {
      case MESSAGE ->
          cut(
              chunk.getMessage().getText(),
              TURN_CHARACTERS,
              text -> message(chunk, turn -> turn.setText(text)));
      case AGENT_STEP -> steps(chunk);
      default ->
          cut(chunk.getText(), TEXT_CHARACTERS, text -> chunk.toBuilder().setText(text).build());
    };
  }

  private static Chunk message(Chunk chunk, UnaryOperator<Chunk.Message.Builder> change) {
    return chunk.toBuilder().setMessage(change.apply(chunk.getMessage().toBuilder())).build();
  }

  private static List<Chunk> cut(String text, int characters, Function<String, Chunk> make) {
    return split(text, characters).stream().map(make).toList();
  }

  /** Returns a step, and what of it follows in further ones, in the order of reading. */
  private static List<Chunk> steps(Chunk chunk) {
    Chunk.AgentStep whole = chunk.getAgentStep();
    Chunk.AgentStep.Builder empty =
        Chunk.AgentStep.newBuilder().setObservedFirst(whole.getObservedFirst());
    List<Chunk.AgentStep.Builder> steps = new ArrayList<>();
    List<String> names =
        whole.getObservedFirst()
            ? List.of("observation", "thought", "action")
            : List.of("thought", "action", "observation");
    for (String name : names) {
      var field = Chunk.AgentStep.getDescriptor().findFieldByName(name);
      for (String piece : split((String) whole.getField(field), TURN_CHARACTERS)) {
        boolean isNew = steps.isEmpty() || !steps.get(steps.size() - 1).getField(field).equals("");
        if (isNew) {
          steps.add(empty.clone());
        }
        steps.get(steps.size() - 1).setField(field, piece);
      }
    }
    return steps.stream().map(step -> chunk.toBuilder().setAgentStep(step).build()).toList();
  }

  /**
   * Returns a text in pieces of at most so many characters, cut after blank lines, lines or words.
   * A text without any but white space has none.
   */
  static List<String> split(String given, int characters) {
    if (given.length() <= characters) {
      return given.isBlank() ? List.of() : List.of(given);
    }
    String text = given.replace("\r\n", "\n").strip();
    List<String> pieces = new ArrayList<>();
    int start = 0;
    while (start < text.length()) {
      int end = cutAt(text, start, characters);
      String piece = text.substring(start, end);
      if (!piece.isBlank()) {
        pieces.add(piece);
      }
      start = end;
    }
    return pieces;
  }

  private static int cutAt(String text, int start, int characters) {
    int limit = start + characters;
    if (limit >= text.length()) {
      return text.length();
    }
    // A cut in the first half would leave needlessly small pieces.
    int least = start + characters / 2;
    for (String border : List.of("\n\n", "\n", " ")) {
      int at = text.lastIndexOf(border, limit - border.length());
      if (at >= least) {
        return at + border.length();
      }
    }
    return Character.isLowSurrogate(text.charAt(limit)) ? limit - 1 : limit;
  }

  /**
   * Returns the requests that append the chunks in order, each within the service's limits. What is
   * appended again under the same id is divided in the same way, so that each part is stored once.
   */
  List<AppendRequest> requests(String session, Optional<String> requestId) {
    String name = requestId.orElseGet(Connection::newId);
    List<AppendRequest.Builder> requests = new ArrayList<>();
    long room = 0;
    for (Chunk chunk : chunks) {
      int size = Chunks.sizeBytes(chunk);
      int last = requests.size() - 1;
      if (last < 0 || size > room || requests.get(last).getChunksCount() == Chunks.BATCH_CHUNKS) {
        last++;
        String id = last == 0 ? name : partId(name, last + 1);
        requests.add(AppendRequest.newBuilder().setSession(session).setRequestId(id));
        room = Chunks.BATCH_BYTES;
      }
      requests.get(last).addChunks(chunk);
      room -= size;
    }
    return requests.stream().map(AppendRequest.Builder::build).toList();
  }

  /** Returns an id that no client gives to a request of its own, and that fits the limit. */
  private static String partId(String requestId, int number) {
    String text = "remember\0" + requestId + "\0" + number;
    try {
      MessageDigest sha256 = MessageDigest.getInstance("SHA-256");
      return HexFormat.of().formatHex(sha256.digest(text.getBytes(StandardCharsets.UTF_8)));
    } catch (NoSuchAlgorithmException error) {
      throw new AssertionError("every Java has SHA-256", error);
    }
  }

  /** Returns what was stored by all requests. */
  Remembered remembered(List<AppendRequest> requests, List<AppendResponse> responses) {
    if (responses.isEmpty()) {
      return new Remembered(Optional.empty(), "", "", chunks.size(), skipped);
    }
    AppendResponse last = responses.get(responses.size() - 1);
    PositionRange positions =
        PositionRange.newBuilder()
            .setFirst(responses.get(0).getPositions().getFirst())
            .setLast(last.getPositions().getLast())
            .build();
    return new Remembered(
        Optional.of(positions),
        last.getReadToken(),
        requests.get(0).getRequestId(),
        chunks.size(),
        skipped);
  }

  /** Returns the error of a request after some others, with the id to continue with. */
  static PalimpsestException storedInPart(
      PalimpsestException error, List<AppendRequest> requests, int done) {
    int total = requests.stream().mapToInt(AppendRequest::getChunksCount).sum();
    int stored = requests.subList(0, done).stream().mapToInt(AppendRequest::getChunksCount).sum();
    String name = requests.get(0).getRequestId();
    if (Errors.isRefused(error) && stored == 0) {
      return error;
    }
    String said =
        Errors.isRefused(error)
            ? stored + " of " + total + " chunks had been stored before"
            : stored
                + " of "
                + total
                + " chunks are stored for certain: pass the same messages again with requestId(\""
                + name
                + "\"), which stores the rest, and nothing twice";
    Map<String, String> more = Map.of("request_id", name, "stored_chunks", String.valueOf(stored));
    return PalimpsestException.reworded(error, error.getMessage() + "; " + said, more);
  }

  /** Throws for what no append accepts; {@code name} says which in words. */
  static void check(List<Chunk> chunks) throws InvalidArgument {
    if (chunks.isEmpty()) {
      throw new IllegalArgumentException("there is nothing to append");
    }
    for (int index = 0; index < chunks.size(); index++) {
      Chunks.check(
          chunks.get(index), "item " + (index + 1), Map.of("chunk", String.valueOf(index)));
    }
  }
}
