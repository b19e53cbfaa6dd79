package dev.palimpsest.conformance;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.protobuf.util.JsonFormat;
import dev.palimpsest.MemoryState;
import dev.palimpsest.PalimpsestException;
import dev.palimpsest.Producer;
import dev.palimpsest.Schemas;
import dev.palimpsest.v1.Amendment;
import dev.palimpsest.v1.Answer;
import dev.palimpsest.v1.Memory;
import dev.palimpsest.v1.PositionRange;
import dev.palimpsest.v1.WatchMemoryResponse;
import java.util.Collection;
import java.util.Locale;
import java.util.Optional;
import java.util.function.Function;

/** Writes what the client returns as the scripts expect it. */
final class Replies {
  private static final JsonFormat.Printer PRINTER =
      JsonFormat.printer().preservingProtoFieldNames().alwaysPrintFieldsWithNoPresence();

  private Replies() {}

  /** Returns an object of names and values, one after the other. */
  static JsonObject object(Object... namesAndValues) {
    JsonObject object = new JsonObject();
    for (int index = 0; index < namesAndValues.length; index += 2) {
      object.add((String) namesAndValues[index], json(namesAndValues[index + 1]));
    }
    return object;
  }

  static JsonElement json(Object value) {
    if (value instanceof JsonElement one) {
      return one;
    } else if (value instanceof Optional<?> one) {
      return one.map(Replies::json).orElse(JsonNull.INSTANCE);
    } else if (value instanceof Message one) {
      return message(one);
    }
    return JsonParser.parseString(Schemas.write(value));
  }

  static <T> JsonArray list(Collection<T> items, Function<T, JsonElement> convert) {
    JsonArray array = new JsonArray();
    items.forEach(one -> array.add(convert.apply(one)));
    return array;
  }

  static JsonElement message(Message message) {
    try {
      return numbers(JsonParser.parseString(PRINTER.print(message)));
    } catch (InvalidProtocolBufferException error) {
      throw new IllegalStateException(error);
    }
  }

  /** Returns whole numbers, which the JSON of protobuf has as texts, of the known fields. */
  private static JsonElement numbers(JsonElement json) {
    if (json.isJsonArray()) {
      return list(json.getAsJsonArray().asList(), Replies::numbers);
    } else if (!json.isJsonObject()) {
      return json;
    }
    JsonObject found = new JsonObject();
    for (var entry : json.getAsJsonObject().entrySet()) {
      boolean isNumber =
          entry.getKey().matches("head|position|producer_sequence|first|last|revision")
              && entry.getValue().isJsonPrimitive();
      found.add(
          entry.getKey(),
          isNumber ? json(entry.getValue().getAsLong()) : numbers(entry.getValue()));
    }
    return found;
  }

  static JsonElement positions(PositionRange range) {
    return object("first", range.getFirst(), "last", range.getLast());
  }

  static JsonElement ack(Optional<Producer.Ack> ack) {
    return object(
        "producer_sequence", ack.map(Producer.Ack::producerSequence),
        "position", ack.map(Producer.Ack::position),
        "read_token", ack.map(Producer.Ack::readToken));
  }

  static JsonObject memory(Memory memory) {
    return object(
        "session", memory.getSession(),
        "id", memory.getId(),
        "kind", memory.getSpecCase().name().toLowerCase(Locale.ROOT),
        "status", lower(memory.getStatus(), "STATUS_"),
        "revision", Math.max(memory.getRevision(), memory.getReadPoint().getRevision()),
        "applied_position", memory.getAppliedPosition(),
        "read_token", memory.getReadPoint().getReadToken());
  }

  static JsonObject state(MemoryState<?> state) {
    JsonObject found = memory(state.info());
    found.add("value", json(state.value()));
    found.add("revision", json(state.revision()));
    found.add("applied_position", json(state.appliedPosition()));
    return found;
  }

  static JsonElement amendment(Amendment one) {
    return object(
        "op", lower(one.getOp(), "AMENDMENT_OP_"), "path", one.getPath(), "value", value(one));
  }

  private static JsonElement value(Amendment one) {
    return one.getValueJson().isEmpty()
        ? JsonNull.INSTANCE
        : JsonParser.parseString(one.getValueJson());
  }

  static JsonElement revision(WatchMemoryResponse one) {
    return object(
        "revision", one.getRevision().getRevision(),
        "amendments", list(one.getAmendmentsList(), Replies::amendment),
        "resume_token", one.getResumeToken());
  }

  static JsonElement answer(Answer answer) {
    return object(
        "id", answer.getId(),
        "state", lower(answer.getState(), "OPERATION_STATE_"),
        "text", answer.getText(),
        "citations", list(answer.getCitationsList(), Replies::message),
        "value",
            answer.getValueJson().isEmpty()
                ? JsonNull.INSTANCE
                : JsonParser.parseString(answer.getValueJson()));
  }

  static String lower(Enum<?> value, String prefix) {
    return value.name().substring(prefix.length()).toLowerCase(Locale.ROOT);
  }

  static JsonObject error(RuntimeException error) {
    if (error instanceof PalimpsestException known) {
      return object(
          "type", known.getClass().getSimpleName(),
          "code", known.code().name(),
          "reason", known.reason(),
          "message", known.getMessage(),
          "metadata", known.metadata(),
          "fields", known.fields(),
          "retryable", known.isRetryable(),
          "retry_seconds", known.retryDelay().map(one -> one.toMillis() / 1000.0));
    }
    boolean isRefused = error instanceof IllegalArgumentException;
    return object(
        "type",
        error.getClass().getSimpleName(),
        "code",
        isRefused ? "INVALID_ARGUMENT" : "UNKNOWN",
        "reason",
        "",
        "message",
        String.valueOf(error.getMessage()),
        "metadata",
        new JsonObject(),
        "fields",
        new JsonObject(),
        "retry_seconds",
        JsonNull.INSTANCE);
  }
}
