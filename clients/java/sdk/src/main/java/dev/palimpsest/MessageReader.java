package dev.palimpsest;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import dev.palimpsest.MessageParts.Call;
import dev.palimpsest.MessageParts.Part;
import dev.palimpsest.MessageParts.Result;
import dev.palimpsest.MessageParts.Said;
import dev.palimpsest.MessageParts.Thought;
import dev.palimpsest.v1.Chunk;
import java.time.Instant;
import java.time.OffsetDateTime;
import java.time.format.DateTimeParseException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/** Reads messages, one after the other: turns, and steps that get the results of their calls. */
final class MessageReader {

  /**
   * A chunk before it is cut where it is long.
   *
   * @param number of the message that it is from, from 1
   */
  record Numbered(int number, Chunk chunk) {}

  /** Roles whose messages are instructions of the program, not of the conversation. */
  static final Set<String> INSTRUCTIONS = Set.of("system", "developer");

  /** Roles by the types of LangChain's messages. */
  private static final Map<String, String> ROLES =
      Map.of(
          "human", "user",
          "ai", "assistant",
          "AIMessageChunk", "assistant",
          "system", "system",
          "tool", "tool");

  /** What a message has at least one of, be it null. */
  private static final List<String> CONTENTS =
      List.of("content", "tool_calls", "function_call", "refusal");

  private static final Set<String> LABELS = Set.of("thread", "source", "occurred_at", "metadata");
  private static final Set<String> STEP = Set.of("observation", "thought", "action");
  private static final String FORMS =
      "a text, a message with role and content as OpenAI's and Anthropic's clients have it, a step"
          + " of an agent, or a chunk";

  /** What is read of a message. A step may get its result later. */
  private static final class Entry {
    private final int number;
    private Chunk.Builder chunk;

    /** The call that has no result yet. */
    private Optional<Call> call = Optional.empty();

    private Entry(int number, Chunk.Builder chunk) {
      this.number = number;
      this.chunk = chunk;
    }
  }

  private final boolean includeSystem;
  private final List<Entry> entries = new ArrayList<>();
  private int skipped;

  private MessageReader(boolean includeSystem) {
    this.includeSystem = includeSystem;
  }

  /** Reads messages with numbers from {@code first} on. Throws for one, by its number. */
  static MessageReader of(List<Object> items, int first, boolean includeSystem) {
    MessageReader reader = new MessageReader(includeSystem);
    for (int index = 0; index < items.size(); index++) {
      int number = first + index;
      try {
        reader.skipped += reader.read(items.get(index), number) ? 0 : 1;
      } catch (IllegalArgumentException error) {
        throw new IllegalArgumentException("message " + number + ": " + error.getMessage(), error);
      }
    }
    return reader;
  }

  /** Returns what was read, in order. */
  List<Numbered> chunks() {
    return entries.stream().map(one -> new Numbered(one.number, one.chunk.build())).toList();
  }

  /** Returns how many messages nothing is kept of. */
  int skipped() {
    return skipped;
  }

  /** Reads a message; returns whether anything of it is kept. */
  private boolean read(Object item, int number) {
    if (item instanceof Chunk chunk) {
      boolean isLeftOut = !includeSystem && INSTRUCTIONS.contains(chunk.getMessage().getRole());
      return !isLeftOut && add(new Entry(number, chunk.toBuilder()));
    }
    JsonElement json = (JsonElement) item;
    if (json.isJsonPrimitive() && json.getAsJsonPrimitive().isString()) {
      return add(new Entry(number, Chunk.newBuilder().setText(json.getAsString())));
    }
    if (!json.isJsonObject()) {
      throw new IllegalArgumentException("it is not " + FORMS);
    }
    return read(json.getAsJsonObject(), number);
  }

  private boolean read(JsonObject given, int number) {
    Entry entry = new Entry(number, labels(given));
    Optional<String> role =
        MessageParts.text(given, "role").or(() -> MessageParts.text(given, "type").map(ROLES::get));
    if (role.isEmpty()) {
      return readOther(entry, given);
    }
    if (CONTENTS.stream().noneMatch(given::has)) {
      throw new IllegalArgumentException("it has no content, only " + keys(given));
    }
    if (!includeSystem && INSTRUCTIONS.contains(role.get())) {
      return false;
    }
    if (role.get().equals("tool") || role.get().equals("function")) {
      return addResult(MessageParts.result(given, ""), entry);
    }
    if (entry.chunk.getSource().isEmpty()) {
      MessageParts.text(given, "name").ifPresent(entry.chunk::setSource);
    }
    return addTurn(role.get(), entry, MessageParts.of(given));
  }

  /** Reads what has no role: an item beside messages, a text, a step of an agent. */
  private boolean readOther(Entry entry, JsonObject given) {
    Optional<List<Part>> items = MessageParts.items(given, "");
    if (items.isPresent()) {
      boolean kept = false;
      for (Part part : items.get()) {
        Entry step = new Entry(entry.number, entry.chunk.clone());
        kept |=
            part instanceof Call call ? addCall(call, "", step) : addResult((Result) part, step);
      }
      return kept;
    }
    Set<String> others = new java.util.TreeSet<>(given.keySet());
    others.removeAll(LABELS);
    others.remove("type");
    if (others.equals(Set.of("text"))) {
      entry.chunk.setText(given.get("text").getAsString());
      return add(entry);
    }
    if (!others.isEmpty() && STEP.containsAll(others)) {
      Chunk.AgentStep.Builder step = entry.chunk.getAgentStepBuilder();
      MessageParts.text(given, "observation").ifPresent(step::setObservation);
      MessageParts.text(given, "thought").ifPresent(step::setThought);
      MessageParts.text(given, "action").ifPresent(step::setAction);
      return add(entry);
    }
    if (given.has("choices") || given.has("output")) {
      throw new IllegalArgumentException(
          "it is a whole reply: give its message, such as choices[0].message or output");
    }
    throw new IllegalArgumentException("an object of " + keys(given) + " is not " + FORMS);
  }

  /**
   * Adds a message, and the steps of its calls. What comes before a call is the thought of that
   * step; other thoughts are not kept.
   */
  private boolean addTurn(String role, Entry entry, List<Part> parts) {
    boolean kept = false;
    List<Part> before = new ArrayList<>();
    for (Part part : parts) {
      Entry step = new Entry(entry.number, entry.chunk.clone());
      if (part instanceof Call call) {
        kept |= addCall(call, joined(before), step);
        before.clear();
      } else if (part instanceof Result result) {
        kept |= addResult(result, step);
      } else {
        before.add(part);
      }
    }
    before.removeIf(Thought.class::isInstance);
    entry.chunk.getMessageBuilder().setRole(role).setText(joined(before));
    return add(entry) || kept;
  }

  private boolean addCall(Call call, String thought, Entry entry) {
    entry.call = Optional.of(call);
    entry
        .chunk
        .getAgentStepBuilder()
        .setThought(thought)
        .setAction(call.name() + "(" + call.arguments() + ")");
    return add(entry);
  }

  /** Adds a result to the step of its call; without one it is a step of its own. */
  private boolean addResult(Result result, Entry entry) {
    Optional<Entry> waiting = stepOf(result);
    if (waiting.isEmpty()) {
      entry.chunk.getAgentStepBuilder().setObservation(result.text());
      return add(entry);
    }
    Entry step = waiting.get();
    step.call = Optional.empty();
    step.chunk.getAgentStepBuilder().setObservation(result.text());
    // Labels of the call come before those of the result.
    step.chunk = entry.chunk.mergeFrom(step.chunk.build());
    return true;
  }

  /**
   * Returns the waiting step that a result belongs to. It is of the latest message that has one,
   * since a call that was aborted waits for ever, and ids may be used again. Within it the oldest
   * is next: results have the order of their calls.
   */
  private Optional<Entry> stepOf(Result result) {
    List<Entry> found = entries.stream().filter(one -> one.call.isPresent()).toList();
    if (!result.id().isEmpty()) {
      found = having(found, call -> call.id().equals(result.id()));
    } else {
      found = ofLatest(found);
      found =
          result.name().isEmpty()
              ? found
              : having(found, call -> call.name().equals(result.name()));
    }
    return ofLatest(found).stream().findFirst();
  }

  private static List<Entry> having(
      List<Entry> entries, java.util.function.Predicate<Call> isWanted) {
    return entries.stream().filter(one -> isWanted.test(one.call.orElseThrow())).toList();
  }

  private static List<Entry> ofLatest(List<Entry> entries) {
    int latest = entries.isEmpty() ? 0 : entries.get(entries.size() - 1).number;
    return entries.stream().filter(one -> one.number == latest).toList();
  }

  /** Adds an entry unless it is empty; returns whether it was added. */
  private boolean add(Entry entry) {
    Chunk.AgentStep step = entry.chunk.getAgentStep();
    String text = entry.chunk.getText() + entry.chunk.getMessage().getText();
    String whole = text + step.getObservation() + step.getThought() + step.getAction();
    if (whole.isBlank()) {
      return false;
    }
    entries.add(entry);
    return true;
  }

  /** Returns parts as one text, each on a line of its own where they are no one sentence. */
  private static String joined(List<Part> parts) {
    StringBuilder text = new StringBuilder();
    boolean wasJoined = false;
    for (Part part : parts) {
      boolean joined = part instanceof Said said && said.joined();
      text.append(text.isEmpty() || joined || wasJoined ? "" : "\n");
      text.append(part instanceof Said said ? said.text() : ((Thought) part).text());
      wasJoined = joined;
    }
    return text.toString();
  }

  /** Returns a chunk with the labels of a message alone. */
  private static Chunk.Builder labels(JsonObject given) {
    Chunk.Builder labels = Chunk.newBuilder();
    MessageParts.text(given, "thread").ifPresent(labels::setThread);
    MessageParts.text(given, "source").ifPresent(labels::setSource);
    MessageParts.text(given, "occurred_at")
        .ifPresent(one -> labels.setOccurredAt(Times.message(instant(one))));
    if (MessageParts.isGiven(given, "metadata")) {
      JsonElement metadata = given.get("metadata");
      if (!metadata.isJsonObject()) {
        throw new IllegalArgumentException("its metadata must be an object of texts");
      }
      for (var one : metadata.getAsJsonObject().entrySet()) {
        if (!one.getValue().isJsonPrimitive()) {
          throw new IllegalArgumentException("its metadata must be an object of texts");
        }
        labels.putMetadata(one.getKey(), one.getValue().getAsString());
      }
    }
    return labels;
  }

  private static Instant instant(String given) {
    try {
      return OffsetDateTime.parse(given).toInstant();
    } catch (DateTimeParseException error) {
      throw new IllegalArgumentException(
          "its occurred_at must be a time with a zone, such as 2026-05-01T09:30:00Z");
    }
  }

  private static String keys(JsonObject given) {
    return given.isEmpty() ? "nothing" : String.join(", ", given.keySet());
  }
}
