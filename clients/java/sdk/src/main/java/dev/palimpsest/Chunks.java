package dev.palimpsest;

import dev.palimpsest.PalimpsestException.Details;
import dev.palimpsest.PalimpsestException.InvalidArgument;
import dev.palimpsest.v1.Chunk;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Stream;

/**
 * Makes the chunks of a log: texts, messages of a conversation, steps of an agent.
 *
 * <p>A chunk is a message of the API. Labels are set by its builder:
 *
 * <pre>{@code
 * Chunk said = Chunks.user("I moved to Oslo.").toBuilder().setThread("support-7").build();
 * }</pre>
 */
public final class Chunks {
  /** Chunks of a batch at most; the service accepts no more. */
  static final int BATCH_CHUNKS = 256;

  /** Bytes of a batch, metadata included. The service accepts no more content. */
  static final int BATCH_BYTES = 1024 * 1024;

  /** Bytes of a message to the service, which accepts no larger one. */
  static final int MAX_SENT_BYTES = 4 * 1024 * 1024;

  private static final int MAX_ROLE_CHARACTERS = 64;
  private static final int MAX_METADATA = 16;
  private static final int MAX_KEY_CHARACTERS = 64;
  private static final int MAX_VALUE_CHARACTERS = 1024;
  private static final int MAX_ID_BYTES = 256;

  private Chunks() {}

  /** Returns a chunk of plain text. */
  public static Chunk text(String text) {
    return Chunk.newBuilder().setText(text).build();
  }

  /** Returns what the user said. */
  public static Chunk user(String text) {
    return message("user", text);
  }

  /** Returns what the assistant said. */
  public static Chunk assistant(String text) {
    return message("assistant", text);
  }

  /** Returns a turn of a conversation. */
  public static Chunk message(String role, String text) {
    Chunk.Message turn = Chunk.Message.newBuilder().setRole(role).setText(text).build();
    return Chunk.newBuilder().setMessage(turn).build();
  }

  /** Returns a step of an agent, of which any part may be empty, and not all. */
  public static Chunk step(String observation, String thought, String action) {
    Chunk.AgentStep step =
        Chunk.AgentStep.newBuilder()
            .setObservation(observation)
            .setThought(thought)
            .setAction(action)
            .build();
    return Chunk.newBuilder().setAgentStep(step).build();
  }

  /**
   * Throws for what the service refuses whatever its limits are; {@code name} says which it is, in
   * words, and {@code which} as metadata. It would refuse all that is sent with it.
   */
  static void check(Chunk chunk, String name, Map<String, String> which) {
    String wrong = wrong(chunk);
    if (!wrong.isEmpty()) {
      Details details = Details.of("FIELD_INVALID", which, name + ": " + wrong);
      throw new InvalidArgument(details, null);
    }
  }

  private static String wrong(Chunk chunk) {
    if (parts(chunk).skip(1).allMatch(String::isEmpty)) {
      return "its text is empty";
    }
    if (chunk.hasMessage() && !isWithin(chunk.getMessage().getRole(), 1, MAX_ROLE_CHARACTERS)) {
      return "its role must have 1 to 64 characters";
    }
    Map<String, String> metadata = chunk.getMetadataMap();
    if (metadata.size() > MAX_METADATA) {
      return "it has " + metadata.size() + " entries of metadata; 16 are the most";
    }
    if (!metadata.keySet().stream().allMatch(one -> isWithin(one, 1, MAX_KEY_CHARACTERS))) {
      return "a key of its metadata must have 1 to 64 characters";
    }
    if (!metadata.values().stream().allMatch(one -> isWithin(one, 0, MAX_VALUE_CHARACTERS))) {
      return "a value of its metadata must have at most 1024 characters";
    }
    if (Stream.concat(parts(chunk), words(metadata)).anyMatch(one -> one.indexOf('\0') >= 0)) {
      return "it holds a NUL character; text.replace(\"\\0\", \"\") removes it";
    }
    return "";
  }

  /** Throws for a thread or a source that the service accepts as no id. */
  static void checkLabels(Chunk chunk, String name) {
    for (Map.Entry<String, String> one :
        Map.of("thread", chunk.getThread(), "source", chunk.getSource()).entrySet()) {
      String given = one.getValue();
      boolean isId =
          given.equals(given.strip())
              && !given.contains("/")
              && !given.equals(".")
              && !given.equals("..")
              && given.getBytes(StandardCharsets.UTF_8).length <= MAX_ID_BYTES
              && given.codePoints().allMatch(Chunks::isPrinted);
      if (!isId) {
        throw new IllegalArgumentException(
            name
                + ": its "
                + one.getKey()
                + " '"
                + given
                + "' is no id: it must be printable, without a slash and without blanks at its"
                + " ends, and have at most 256 bytes");
      }
    }
  }

  private static boolean isPrinted(int character) {
    return switch (Character.getType(character)) {
      case Character.CONTROL, Character.LINE_SEPARATOR, Character.PARAGRAPH_SEPARATOR -> false;
      // The joiners are parts of words.
      case Character.FORMAT -> character == 0x200c || character == 0x200d;
      default -> true;
    };
  }

  private static boolean isWithin(String text, int least, int most) {
    int characters = text.codePointCount(0, text.length());
    return characters >= least && characters <= most;
  }

  /** Returns role, text, observation, thought and action; empty where its kind has none. */
  private static Stream<String> parts(Chunk chunk) {
    Chunk.Message turn = chunk.getMessage();
    Chunk.AgentStep step = chunk.getAgentStep();
    String text = chunk.hasMessage() ? turn.getText() : chunk.getText();
    return Stream.of(
        turn.getRole(), text, step.getObservation(), step.getThought(), step.getAction());
  }

  private static Stream<String> words(Map<String, String> metadata) {
    return metadata.entrySet().stream().flatMap(one -> Stream.of(one.getKey(), one.getValue()));
  }

  /** Returns the chunk with the SHA-256 of its content, see docs/guides/appending.md#the-digest. */
  static Chunk.Builder digested(Chunk chunk) {
    return chunk.toBuilder().setDigest(com.google.protobuf.ByteString.copyFrom(digest(chunk)));
  }

  private static byte[] digest(Chunk chunk) {
    String kind =
        switch (chunk.getContentCase()) {
          case MESSAGE -> "message";
          case AGENT_STEP -> "step";
          default -> "text";
        };
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try (DataOutputStream out = new DataOutputStream(bytes)) {
      write(out, kind);
      for (String part : parts(chunk).toList()) {
        write(out, part);
      }
      List<Map.Entry<String, String>> metadata = sorted(chunk.getMetadataMap());
      out.writeLong(metadata.size());
      for (Map.Entry<String, String> one : metadata) {
        write(out, one.getKey());
        write(out, one.getValue());
      }
      if (chunk.getAgentStep().getObservedFirst()) {
        out.writeByte(1);
      }
      boolean hasTime = chunk.hasOccurredAt();
      if (hasTime || !chunk.getThread().isEmpty() || !chunk.getSource().isEmpty()) {
        out.writeByte(2);
        write(out, chunk.getThread());
        write(out, chunk.getSource());
        if (hasTime) {
          long nanos = chunk.getOccurredAt().getNanos();
          out.writeLong(chunk.getOccurredAt().getSeconds() * 1_000_000 + nanos / 1000);
        }
      }
      return MessageDigest.getInstance("SHA-256").digest(bytes.toByteArray());
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    } catch (NoSuchAlgorithmException error) {
      throw new AssertionError("every Java has SHA-256", error);
    }
  }

  /** Returns the entries by the code points of their keys. */
  private static List<Map.Entry<String, String>> sorted(Map<String, String> metadata) {
    Map<String, String> found =
        new TreeMap<>(
            (one, other) ->
                java.util.Arrays.compareUnsigned(
                    one.getBytes(StandardCharsets.UTF_8), other.getBytes(StandardCharsets.UTF_8)));
    found.putAll(metadata);
    return List.copyOf(found.entrySet());
  }

  private static void write(DataOutputStream out, String part) throws IOException {
    byte[] raw = part.getBytes(StandardCharsets.UTF_8);
    out.writeLong(raw.length);
    out.write(raw);
  }

  /** Returns what counts in credits: UTF-8 bytes of content, thread, source and metadata. */
  static int sizeBytes(Chunk chunk) {
    Stream<String> labels = Stream.of(chunk.getThread(), chunk.getSource());
    return Stream.of(parts(chunk), labels, words(chunk.getMetadataMap()))
        .flatMap(one -> one)
        .mapToInt(one -> one.getBytes(StandardCharsets.UTF_8).length)
        .sum();
  }
}
