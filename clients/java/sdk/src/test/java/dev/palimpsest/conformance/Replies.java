package dev.palimpsest.conformance;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.protobuf.ByteString;
import com.google.protobuf.Descriptors.EnumValueDescriptor;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.MapEntry;
import com.google.protobuf.Message;
import com.google.protobuf.Timestamp;
import com.google.protobuf.util.Timestamps;
import dev.palimpsest.MemoryState;
import dev.palimpsest.PalimpsestException;
import dev.palimpsest.Producer;
import dev.palimpsest.Schemas;
import dev.palimpsest.v1.Amendment;
import dev.palimpsest.v1.Answer;
import dev.palimpsest.v1.Chunk;
import dev.palimpsest.v1.Memory;
import dev.palimpsest.v1.PositionRange;
import dev.palimpsest.v1.WatchMemoryResponse;
import java.util.Collection;
import java.util.HexFormat;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.function.Function;

/** Writes what the client returns as the scripts expect it. */
final class Replies {
  /** What an enum means that is not set, where that is something. */
  private static final Map<String, String> UNSPECIFIED = Map.of("Source_Trust", "trusted");

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

  /** Returns a message with all of its fields; null is what is absent. */
  static JsonObject message(Message message) {
    JsonObject found = new JsonObject();
    for (FieldDescriptor field : message.getDescriptorForType().getFields()) {
      found.add(field.getName(), field(message, field));
    }
    return found;
  }

  private static JsonElement field(Message message, FieldDescriptor field) {
    if (field.hasPresence() && !message.hasField(field)) {
      return JsonNull.INSTANCE;
    } else if (field.isMapField()) {
      JsonObject found = new JsonObject();
      for (Object one : (List<?>) message.getField(field)) {
        MapEntry<?, ?> entry = (MapEntry<?, ?>) one;
        found.add(entry.getKey().toString(), value(entry.getValue()));
      }
      return found;
    } else if (field.isRepeated()) {
      return list((List<?>) message.getField(field), Replies::value);
    }
    return value(message.getField(field));
  }

  private static JsonElement value(Object value) {
    if (value instanceof Timestamp one) {
      return json(Timestamps.toString(one));
    } else if (value instanceof Message one) {
      return message(one);
    } else if (value instanceof ByteString one) {
      return json(HexFormat.of().formatHex(one.toByteArray()));
    } else if (value instanceof EnumValueDescriptor one) {
      // SOURCE_TRUST_BLOCKED of SourceTrust is "blocked".
      String type = one.getType().getName().replaceAll("([a-z])([A-Z])", "$1_$2");
      String name = one.getName().substring(type.length() + 1).toLowerCase(Locale.ROOT);
      return json(name.equals("unspecified") ? UNSPECIFIED.getOrDefault(type, "") : name);
    }
    return json(value);
  }

  /** Returns a chunk; one whose content was removed has an empty text. */
  static JsonObject chunk(Chunk chunk) {
    JsonObject found = message(chunk);
    found.addProperty("redacted", chunk.hasRedaction());
    if (chunk.getContentCase() == Chunk.ContentCase.CONTENT_NOT_SET) {
      found.addProperty("text", "");
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
        "op", lower(one.getOp(), "AMENDMENT_OP_"), "path", one.getPath(), "value", valueOf(one));
  }

  private static JsonElement valueOf(Amendment one) {
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

  static JsonObject answer(Answer answer) {
    return object(
        "id", answer.getId(),
        "query", answer.getQuery(),
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
