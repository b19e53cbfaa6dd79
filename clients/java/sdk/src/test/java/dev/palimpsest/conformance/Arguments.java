package dev.palimpsest.conformance;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.protobuf.Timestamp;
import dev.palimpsest.Chunks;
import dev.palimpsest.Messages;
import dev.palimpsest.v1.Chunk;
import dev.palimpsest.v1.ChunkFilter;
import dev.palimpsest.v1.ReadConsistency;
import dev.palimpsest.v1.Retention;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.stream.Collectors;

/** Reads the arguments of a command. */
record Arguments(JsonObject json) {

  boolean has(String name) {
    return json.has(name) && !json.get(name).isJsonNull();
  }

  String text(String name) {
    return json.get(name).getAsString();
  }

  String text(String name, String otherwise) {
    return has(name) ? text(name) : otherwise;
  }

  boolean isSet(String name) {
    return has(name) && json.get(name).getAsBoolean();
  }

  Optional<Duration> seconds(String name) {
    return ifGiven(name, one -> Duration.ofNanos((long) (one.getAsDouble() * 1e9)));
  }

  <T> Optional<T> ifGiven(String name, java.util.function.Function<JsonElement, T> read) {
    return has(name) ? Optional.of(read.apply(json.get(name))) : Optional.empty();
  }

  /** Sets a text, if it is given. */
  void texts(String name, Consumer<String> set) {
    ifGiven(name, JsonElement::getAsString).ifPresent(set);
  }

  /** Sets a whole number, if it is given. */
  void number(String name, Consumer<Long> set) {
    ifGiven(name, JsonElement::getAsLong).ifPresent(set);
  }

  List<JsonElement> items(String name) {
    if (!has(name)) {
      return List.of();
    }
    JsonElement given = json.get(name);
    return given.isJsonArray() ? given.getAsJsonArray().asList() : List.of(given);
  }

  List<String> names(String name) {
    return items(name).stream().map(JsonElement::getAsString).toList();
  }

  Map<String, String> map(String name) {
    return json.getAsJsonObject(name).entrySet().stream()
        .collect(Collectors.toMap(Map.Entry::getKey, one -> one.getValue().getAsString()));
  }

  /** Returns messages, texts, steps and chunks. */
  List<Chunk> chunks(String name) {
    List<Chunk> found = new ArrayList<>();
    for (JsonElement one : items(name)) {
      found.add(
          one.isJsonPrimitive()
              ? Chunks.text(one.getAsString())
              : chunk(new Arguments(one.getAsJsonObject())));
    }
    return found;
  }

  /** Returns what the scripts have as messages: a text, a message, or a list of them. */
  Messages messages(String name) {
    return Messages.json(has(name) ? json.get(name).toString() : "[]");
  }

  private static Chunk chunk(Arguments given) {
    Chunk.Builder chunk = content(given).toBuilder();
    given.texts("thread", chunk::setThread);
    given.texts("source", chunk::setSource);
    given.texts("occurred_at", one -> chunk.setOccurredAt(time(one)));
    if (given.has("metadata")) {
      chunk.putAllMetadata(given.map("metadata"));
    }
    return chunk.build();
  }

  private static Chunk content(Arguments given) {
    if (given.has("role")) {
      return Chunks.message(given.text("role"), given.text("content", ""));
    } else if (given.has("message")) {
      Arguments turn = new Arguments(given.json.getAsJsonObject("message"));
      return Chunks.message(turn.text("role", ""), turn.text("text", ""));
    } else if (given.has("agent_step")) {
      return step(new Arguments(given.json.getAsJsonObject("agent_step")));
    }
    boolean isStep = given.has("observation") || given.has("thought") || given.has("action");
    return isStep ? step(given) : Chunks.text(given.text("text", ""));
  }

  static Chunk step(Arguments given) {
    return Chunks.step(
        given.text("observation", ""), given.text("thought", ""), given.text("action", ""));
  }

  /** Reads how many days data is kept; null is as the policy says. */
  static Retention retention(JsonElement given) {
    Retention.Builder retention = Retention.newBuilder();
    given
        .getAsJsonObject()
        .asMap()
        .forEach(
            (name, days) -> {
              if (!days.isJsonNull()) {
                retention.setField(
                    Retention.getDescriptor().findFieldByName(name), days.getAsInt());
              }
            });
    return retention.build();
  }

  void consistency(ReadConsistency.Builder consistency) {
    texts("after", consistency::setAtLeast);
    consistency.setFullyApplied(isSet("fully_applied"));
  }

  void filter(ChunkFilter.Builder filter) {
    number("from_position", one -> filter.getPositionsBuilder().setFirst(one));
    number("to_position", one -> filter.getPositionsBuilder().setLast(one));
    filter.addAllThreads(names("threads"));
    filter.addAllExcludedThreads(names("excluded_threads"));
    filter.addAllSources(names("sources"));
    texts("occurred_since", one -> filter.getOccurredBuilder().setStart(time(one)));
    texts("occurred_until", one -> filter.getOccurredBuilder().setEnd(time(one)));
  }

  private static Timestamp time(String text) {
    Instant at = Instant.parse(text);
    return Timestamp.newBuilder().setSeconds(at.getEpochSecond()).setNanos(at.getNano()).build();
  }
}
