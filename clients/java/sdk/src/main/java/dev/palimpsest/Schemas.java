package dev.palimpsest;

import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;
import java.lang.reflect.AnnotatedElement;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.RecordComponent;
import java.lang.reflect.Type;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Deque;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * Schemas from records, and values of memories in them.
 *
 * <p>A component is a String, a number, a boolean, an enum, a record, an Optional of one of these,
 * a List or a Map from String to any of them. What a memory does not have yet is empty: a
 * collection, an Optional, otherwise null or zero.
 */
public final class Schemas {
  private static final Gson GSON = new Gson().newBuilder().disableHtmlEscaping().create();
  private static final Map<Type, String> SCALARS =
      Map.ofEntries(
          Map.entry(String.class, "string"),
          Map.entry(int.class, "integer"),
          Map.entry(Integer.class, "integer"),
          Map.entry(long.class, "integer"),
          Map.entry(Long.class, "integer"),
          Map.entry(double.class, "number"),
          Map.entry(Double.class, "number"),
          Map.entry(boolean.class, "boolean"),
          Map.entry(Boolean.class, "boolean"));

  private Schemas() {}

  /**
   * Returns the JSON Schema of a record, as a text.
   *
   * @throws IllegalArgumentException naming record and component, for what no schema can say
   */
  public static String jsonSchemaOf(Class<? extends Record> type) {
    Writer writer = new Writer();
    JsonObject document = writer.record(type);
    if (writer.definitions.size() > 0) {
      document.add("$defs", writer.definitions);
    }
    return GSON.toJson(document);
  }

  /**
   * Reads a JSON text into a record, or another type that a component may have; into maps, lists,
   * texts, numbers (Long, Double) and booleans for {@code Object}.
   *
   * @throws IllegalArgumentException for a value that is none of this type
   */
  public static <T> T read(String json, Class<T> type) {
    return cast(decoded(JsonParser.parseString(json), type, type.getSimpleName()));
  }

  /** Reads a JSON object into maps, lists, texts, numbers (Long, Double) and booleans. */
  static Map<String, Object> readMap(String json) {
    return cast(untyped(JsonParser.parseString(json)));
  }

  /** Returns a record, or another value that JSON can say, as a JSON text. */
  public static String write(Object value) {
    return GSON.toJson(encoded(value));
  }

  @SuppressWarnings("unchecked") // The decoder has made a value of this type.
  private static <T> T cast(Object value) {
    return (T) value;
  }

  /** Writes the records that one record uses. */
  private static final class Writer {
    private final JsonObject definitions = new JsonObject();
    private final Map<Class<?>, String> keys = new HashMap<>();
    private final Deque<Class<?>> open = new ArrayDeque<>();

    JsonObject record(Class<?> type) {
      if (!type.isRecord() || type.getRecordComponents().length == 0) {
        throw new IllegalArgumentException(
            type.getSimpleName() + " is no record with components: a schema needs one");
      }
      open.push(type);
      JsonObject properties = new JsonObject();
      for (RecordComponent component : type.getRecordComponents()) {
        String where = type.getSimpleName() + "." + component.getName();
        JsonObject property = type(component.getGenericType(), where);
        described(property, component);
        properties.add(component.getName(), property);
      }
      open.pop();
      JsonObject document = new JsonObject();
      document.addProperty("title", type.getSimpleName());
      described(document, type);
      document.addProperty("type", "object");
      document.add("properties", properties);
      document.addProperty("additionalProperties", false);
      return document;
    }

    private JsonObject type(Type type, String where) {
      JsonObject written = new JsonObject();
      if (SCALARS.containsKey(type)) {
        written.addProperty("type", SCALARS.get(type));
      } else if (type instanceof Class<?> one && one.isEnum()) {
        JsonArray names = new JsonArray();
        Arrays.stream(one.getEnumConstants()).forEach(it -> names.add(((Enum<?>) it).name()));
        written.add("enum", names);
        described(written, one);
      } else if (type instanceof Class<?> one && one.isRecord()) {
        written.addProperty("$ref", "#/$defs/" + key(one, where));
      } else if (isOf(type, List.class)) {
        written.addProperty("type", "array");
        written.add("items", type(argument(type, 0), where));
      } else if (isOf(type, Map.class) && argument(type, 0) == String.class) {
        written.addProperty("type", "object");
        written.add("additionalProperties", type(argument(type, 1), where));
      } else if (isOf(type, Optional.class)) {
        JsonArray either = new JsonArray();
        either.add(type(argument(type, 0), where));
        JsonObject nothing = new JsonObject();
        nothing.addProperty("type", "null");
        either.add(nothing);
        written.add("anyOf", either);
      } else {
        throw new IllegalArgumentException(
            where
                + ": "
                + type.getTypeName()
                + " is no type that a schema knows: use String, int, long, double, boolean, an enum,"
                + " a record, List, Map<String, …> or Optional");
      }
      return written;
    }

    private String key(Class<?> type, String where) {
      if (open.contains(type)) {
        throw new IllegalArgumentException(
            where + ": " + type.getSimpleName() + " contains itself, which no schema can");
      }
      if (!keys.containsKey(type)) {
        String key = type.getSimpleName();
        while (definitions.has(key)) {
          key += "_";
        }
        keys.put(type, key);
        // Before its parts, so that no other record takes the key.
        definitions.add(key, new JsonObject());
        definitions.add(key, record(type));
      }
      return keys.get(type);
    }

    private static void described(JsonObject written, AnnotatedElement element) {
      Description description = element.getAnnotation(Description.class);
      if (description != null) {
        written.addProperty("description", description.value());
      }
    }
  }

  private static boolean isOf(Type type, Class<?> raw) {
    return type instanceof ParameterizedType one && one.getRawType() == raw;
  }

  private static Type argument(Type type, int index) {
    return ((ParameterizedType) type).getActualTypeArguments()[index];
  }

  private static Object decoded(JsonElement json, Type type, String where) {
    boolean isNull = json == null || json.isJsonNull();
    if (isOf(type, Optional.class)) {
      return isNull ? Optional.empty() : Optional.of(decoded(json, argument(type, 0), where));
    }
    try {
      if (isOf(type, List.class)) {
        List<Object> items = new ArrayList<>();
        (isNull ? new JsonArray() : json.getAsJsonArray())
            .forEach(one -> items.add(decoded(one, argument(type, 0), where)));
        return List.copyOf(items);
      }
      if (isOf(type, Map.class)) {
        Map<String, Object> entries = new LinkedHashMap<>();
        (isNull ? new JsonObject() : json.getAsJsonObject())
            .entrySet()
            .forEach(
                one ->
                    entries.put(one.getKey(), decoded(one.getValue(), argument(type, 1), where)));
        return java.util.Collections.unmodifiableMap(entries);
      }
      if (type instanceof Class<?> one && one.isRecord()) {
        return decodedRecord(isNull ? new JsonObject() : json.getAsJsonObject(), one);
      }
      return scalar(isNull ? JsonNull.INSTANCE : json, type);
    } catch (IllegalStateException | NumberFormatException | UnsupportedOperationException error) {
      throw new IllegalArgumentException(
          where + ": the memory has " + json + ", which is no " + type.getTypeName(), error);
    }
  }

  private static Object scalar(JsonElement json, Type type) {
    boolean isNull = json.isJsonNull();
    if (type == Object.class) {
      return untyped(json);
    } else if (type == String.class) {
      return isNull ? null : json.getAsString();
    } else if (type == int.class || type == Integer.class) {
      return isNull ? zero(type, 0) : (Object) json.getAsBigDecimal().intValueExact();
    } else if (type == long.class || type == Long.class) {
      return isNull ? zero(type, 0L) : (Object) json.getAsBigDecimal().longValueExact();
    } else if (type == double.class || type == Double.class) {
      return isNull ? zero(type, 0.0) : (Object) json.getAsDouble();
    } else if (type == boolean.class || type == Boolean.class) {
      return isNull ? zero(type, false) : (Object) json.getAsBoolean();
    } else if (type instanceof Class<?> one && one.isEnum()) {
      return Arrays.stream(one.getEnumConstants())
          .filter(it -> !isNull && ((Enum<?>) it).name().equals(json.getAsString()))
          .findFirst()
          .orElse(null);
    }
    throw new IllegalArgumentException(type.getTypeName() + " is no type that a schema knows");
  }

  private static Object zero(Type type, Object zero) {
    return type instanceof Class<?> one && one.isPrimitive() ? zero : null;
  }

  private static Object decodedRecord(JsonObject json, Class<?> type) {
    RecordComponent[] components = type.getRecordComponents();
    Class<?>[] types =
        Arrays.stream(components).map(RecordComponent::getType).toArray(Class<?>[]::new);
    Object[] values =
        Arrays.stream(components)
            .map(
                one ->
                    decoded(
                        json.get(one.getName()),
                        one.getGenericType(),
                        type.getSimpleName() + "." + one.getName()))
            .toArray();
    try {
      Constructor<?> constructor = type.getDeclaredConstructor(types);
      constructor.setAccessible(true);
      return constructor.newInstance(values);
    } catch (InvocationTargetException error) {
      throw new IllegalArgumentException(
          type.getSimpleName() + " refuses the value: " + error.getCause(), error.getCause());
    } catch (ReflectiveOperationException error) {
      throw new IllegalArgumentException(type.getSimpleName() + " cannot be made", error);
    }
  }

  private static Object untyped(JsonElement json) {
    if (json.isJsonNull()) {
      return null;
    } else if (json.isJsonArray()) {
      return json.getAsJsonArray().asList().stream().map(Schemas::untyped).toList();
    } else if (json.isJsonObject()) {
      Map<String, Object> entries = new LinkedHashMap<>();
      json.getAsJsonObject()
          .entrySet()
          .forEach(e -> entries.put(e.getKey(), untyped(e.getValue())));
      return java.util.Collections.unmodifiableMap(entries);
    }
    JsonPrimitive value = json.getAsJsonPrimitive();
    if (value.isBoolean()) {
      return value.getAsBoolean();
    } else if (value.isString()) {
      return value.getAsString();
    }
    String number = value.getAsString();
    return number.matches("-?\\d{1,18}")
        ? (Object) Long.parseLong(number)
        : (Object) value.getAsDouble();
  }

  private static JsonElement encoded(Object value) {
    if (value == null) {
      return JsonNull.INSTANCE;
    } else if (value instanceof Optional<?> one) {
      return encoded(one.orElse(null));
    } else if (value instanceof Collection<?> all) {
      JsonArray items = new JsonArray();
      all.forEach(one -> items.add(encoded(one)));
      return items;
    } else if (value instanceof Map<?, ?> all) {
      JsonObject entries = new JsonObject();
      all.forEach((key, one) -> entries.add(String.valueOf(key), encoded(one)));
      return entries;
    } else if (value instanceof Record one) {
      JsonObject entries = new JsonObject();
      for (RecordComponent component : one.getClass().getRecordComponents()) {
        entries.add(component.getName(), encoded(component(one, component)));
      }
      return entries;
    } else if (value instanceof Enum<?> one) {
      return new JsonPrimitive(one.name());
    } else if (value instanceof String
        || value instanceof Boolean
        || value instanceof Integer
        || value instanceof Long
        || value instanceof Double) {
      return GSON.toJsonTree(value);
    }
    throw new IllegalArgumentException(
        "a " + value.getClass().getSimpleName() + " is no value that a memory can have");
  }

  private static Object component(Record record, RecordComponent component) {
    try {
      component.getAccessor().setAccessible(true);
      return component.getAccessor().invoke(record);
    } catch (ReflectiveOperationException error) {
      throw new IllegalArgumentException(component.getName() + " cannot be read", error);
    }
  }
}
