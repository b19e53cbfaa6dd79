package dev.palimpsest;

import java.time.Instant;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;

/** How {@link Session#remember} stores messages. Labels are those of messages without their own. */
public final class RememberOptions {
  Optional<String> thread = Optional.empty();
  Optional<String> source = Optional.empty();
  Optional<Instant> occurredAt = Optional.empty();
  final Map<String, String> metadata = new HashMap<>();
  Optional<String> requestId = Optional.empty();
  boolean includeSystem;
  boolean wait;

  RememberOptions() {}

  /** Names the conversation that the messages belong to. */
  public RememberOptions thread(String thread) {
    this.thread = Optional.of(thread);
    return this;
  }

  /** Names who or what the messages are from. */
  public RememberOptions source(String source) {
    this.source = Optional.of(source);
    return this;
  }

  /** Says when it was said; without it: when it is stored. */
  public RememberOptions occurredAt(Instant occurredAt) {
    this.occurredAt = Optional.of(occurredAt);
    return this;
  }

  /** Adds an entry of metadata, which no model sees. */
  public RememberOptions metadata(String key, String value) {
    metadata.put(key, value);
    return this;
  }

  /**
   * Names the turn, if the program itself may repeat the call: the same messages under the same id
   * are stored once for ever.
   */
  public RememberOptions requestId(String requestId) {
    if (requestId.isEmpty()) {
      throw new IllegalArgumentException(
          "a request id must not be empty; without one the client makes one");
    }
    this.requestId = Optional.of(requestId);
    return this;
  }

  /** Also stores messages of the system and the developer, which are the program's. */
  public RememberOptions includeSystem() {
    includeSystem = true;
    return this;
  }

  /** Also waits, within the same timeout, until all memories of the session have read it. */
  public RememberOptions waitUntilRead() {
    wait = true;
    return this;
  }
}
