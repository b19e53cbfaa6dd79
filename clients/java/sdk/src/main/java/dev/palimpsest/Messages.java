package dev.palimpsest;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonParseException;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;
import com.google.gson.JsonSerializer;
import dev.palimpsest.v1.Chunk;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * Messages as OpenAI's, Anthropic's and compatible clients have them, with calls of tools.
 *
 * <pre>{@code
 * alice.remember(Messages.json(mapper.writeValueAsString(params.messages())));
 * }</pre>
 *
 * <p>A call of a tool and its result become one step of an agent, whose thought is what the model
 * said before. A message may have its own {@code thread}, {@code source}, {@code occurred_at} and
 * {@code metadata}; its {@code name} is its source. Images, audio and files are refused by the
 * number of their message when it is remembered; what is recalled for a conversation leaves them
 * out.
 */
public final class Messages {
  private static final Gson GSON =
      new GsonBuilder()
          .registerTypeAdapter(
              Instant.class,
              (JsonSerializer<Instant>) (at, type, context) -> new JsonPrimitive(at.toString()))
          .create();

  /** Each is a chunk, or the JSON of a text, a message or an item beside messages. */
  private final List<Object> items;

  private Messages(List<Object> items) {
    this.items = items;
  }

  /**
   * Returns messages that are maps, such as {@code Map.of("role", "user", "content", "Hello.")};
   * texts and chunks may be among them.
   *
   * @throws IllegalArgumentException for another object, by its number
   */
  public static Messages of(List<?> messages) {
    List<Object> items = new ArrayList<>();
    for (Object one : messages) {
      if (one instanceof Chunk) {
        items.add(one);
      } else if (one instanceof Map || one instanceof String || one instanceof JsonElement) {
        items.add(GSON.toJsonTree(one));
      } else {
        String kind = one == null ? "null" : "an object of " + one.getClass().getSimpleName();
        throw new IllegalArgumentException(
            "message "
                + (items.size() + 1)
                + ": "
                + kind
                + " is no text, map or chunk: write it as JSON with the mapper of its library, and"
                + " use Messages.json");
      }
    }
    return new Messages(List.copyOf(items));
  }

  /**
   * Returns the messages of a JSON text: a list of them, or one.
   *
   * @throws IllegalArgumentException for what is no JSON
   */
  public static Messages json(String json) {
    try {
      JsonElement read = JsonParser.parseString(json);
      return new Messages(
          read.isJsonArray() ? List.copyOf(read.getAsJsonArray().asList()) : List.of(read));
    } catch (JsonParseException error) {
      // Its message repeats the text, which may be anybody's.
      throw new IllegalArgumentException("the messages are no JSON: give a list of messages");
    }
  }

  List<Object> items() {
    return items;
  }
}
