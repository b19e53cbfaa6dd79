package dev.palimpsest;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import dev.palimpsest.v1.Chunk;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;

/** The query that messages are: the last one of the user, and what was said just before. */
final class Query {
  private static final int MAX_CHARACTERS = 16_000;
  private static final int CONTEXT_MESSAGES = 2;
  private static final int CONTEXT_CHARACTERS = 150;

  /** Roles of messages that ask nothing; and those of messages that do, or LangChain's types. */
  private static final Set<String> ANSWERING = Set.of("assistant", "system");

  private static final Set<String> ASKING = Set.of("user", "human");

  /** Who says what in a message. */
  private record Turn(String role, String text) {}

  private Query() {}

  /** Returns the query that chunks are. */
  static String of(List<Chunk> messages) {
    return of(Messages.of(messages));
  }

  /**
   * Returns the query; without a message of the user it is the newest ones. A message is read only
   * when it is its turn, so that wrong ones among the older do no harm. What is no text, such as an
   * image, is left out.
   *
   * @throws IllegalArgumentException where the last message of the user has no text
   */
  static String of(Messages messages) {
    List<String> newest = new ArrayList<>();
    boolean isFound = false;
    for (int index = messages.items().size() - 1; index >= 0; index--) {
      if (isFound && newest.size() > CONTEXT_MESSAGES) {
        break;
      }
      Object item = messages.items().get(index);
      Turn turn = turn(item, index + 1);
      if (turn.text().isBlank()) {
        if (!isFound) {
          refuseWithoutText(item, index + 1);
        }
        continue;
      }
      if (!isFound && !ANSWERING.contains(turn.role())) {
        isFound = true;
        newest.clear();
      }
      newest.add(turn.text());
    }
    if (newest.isEmpty()) {
      return "";
    }
    StringBuilder context = new StringBuilder();
    for (String one : newest.subList(1, Math.min(newest.size(), CONTEXT_MESSAGES + 1))) {
      context.append('\n').append(one, 0, Math.min(one.length(), CONTEXT_CHARACTERS));
    }
    return (ends(newest.get(0), MAX_CHARACTERS - context.length()) + context).strip();
  }

  /** Returns who says what in a message; calls of tools and their results say nothing. */
  private static Turn turn(Object item, int number) {
    if (item instanceof Chunk chunk) {
      Chunk.Message turn = chunk.getMessage();
      return new Turn(turn.getRole(), chunk.hasMessage() ? turn.getText() : chunk.getText());
    }
    Object read = item;
    if (item instanceof JsonObject given) {
      boolean isMessage = given.has("role") || given.has("content");
      if (!isMessage && given.has("type") && !given.has("text")) {
        // A call, a result or a thought beside messages.
        return new Turn("", "");
      }
      read = isMessage ? readable(given) : given;
    }
    String role = "";
    StringBuilder said = new StringBuilder();
    for (var one : MessageReader.of(List.of(read), number, true).chunks()) {
      Chunk.Message turn = one.chunk().getMessage();
      role = role.isEmpty() ? turn.getRole() : role;
      said.append(one.chunk().hasMessage() ? turn.getText() : one.chunk().getText());
    }
    return new Turn(role, said.toString());
  }

  /** Returns a message without labels, and without the parts that are not remembered. */
  private static JsonObject readable(JsonObject given) {
    JsonObject found = new JsonObject();
    for (String name : List.of("role", "type", "refusal", "tool_calls", "function_call")) {
      if (given.has(name)) {
        found.add(name, given.get(name));
      }
    }
    JsonArray content = new JsonArray();
    blocks(given).stream().filter(Query::isRead).forEach(content::add);
    found.add("content", content);
    return found;
  }

  private static List<JsonElement> blocks(JsonObject given) {
    JsonElement content = given.get("content");
    if (content == null || content.isJsonNull()) {
      return List.of();
    }
    return content.isJsonArray() ? content.getAsJsonArray().asList() : List.of(content);
  }

  private static boolean isRead(JsonElement block) {
    JsonObject message = new JsonObject();
    JsonArray content = new JsonArray();
    content.add(block);
    message.add("content", content);
    try {
      return !MessageParts.of(message).isEmpty();
    } catch (IllegalArgumentException error) {
      return false;
    }
  }

  /** Throws for a message of the user that has only what is no text. */
  private static void refuseWithoutText(Object item, int number) {
    if (!(item instanceof JsonObject given)) {
      return;
    }
    String role =
        MessageParts.text(given, "role").or(() -> MessageParts.text(given, "type")).orElse("");
    // In Anthropic's form the results of tools are in messages of the user.
    boolean hasResult =
        blocks(given).stream()
            .filter(JsonElement::isJsonObject)
            .flatMap(one -> MessageParts.text(one.getAsJsonObject(), "type").stream())
            .anyMatch(one -> one.endsWith("tool_result"));
    if (ASKING.contains(role) && !hasResult) {
      MessageReader.of(List.of(item), number, true);
    }
  }

  /**
   * Returns a text; of a long one its beginning and its end, either of which may be the question.
   */
  static String ends(String text, int characters) {
    if (text.length() <= characters) {
      return text;
    }
    int half = (characters - 1) / 2;
    return text.substring(0, half) + "\n" + text.substring(text.length() - half);
  }
}
