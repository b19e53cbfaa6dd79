package dev.palimpsest;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * Reads messages as OpenAI's, Anthropic's and compatible clients write them. Each becomes parts:
 * what was said, thoughts, calls of tools, and their results.
 */
final class MessageParts {

  /** A part of a message. */
  sealed interface Part permits Said, Thought, Call, Result {}

  /** A piece of what was said; {@code joined}: it continues the sentence around it. */
  record Said(String text, boolean joined) implements Part {}

  /** What the model thought, and did not say. */
  record Thought(String text) implements Part {}

  /** A call of a tool; the id is empty where the library has none. */
  record Call(String id, String name, String arguments) implements Part {}

  /** What a tool returned; id and name of its call are empty where the library has none. */
  record Result(String id, String name, String text) implements Part {}

  /** Types of parts that are text, by the field that has it. */
  private static final Map<String, String> TEXTS =
      Map.of(
          "text", "text",
          "input_text", "text",
          "output_text", "text",
          "summary_text", "text",
          "refusal", "refusal",
          "logs", "logs");

  /** How the types of items and blocks end that call a tool, and of those with its result. */
  private static final List<String> CALLS = List.of("tool_use", "tool_call", "function_call");

  private static final List<String> RESULTS = List.of("tool_result", "call_output");

  /** Calls without a name, and the field that says what to do. */
  private static final Map<String, String> NAMELESS =
      Map.of(
          "code_interpreter_call", "code",
          "shell_call", "action",
          "local_shell_call", "action",
          "apply_patch_call", "operation");

  /** Calls whose result is in the same item. */
  private static final Set<String> WITH_RESULTS = Set.of("mcp_call", "code_interpreter_call");

  /** Items and blocks without words of the conversation, besides calls of a provider's tools. */
  private static final Set<String> WORDLESS =
      Set.of(
          "reasoning",
          "redacted_thinking",
          "compaction",
          "item_reference",
          "mcp_list_tools",
          "mcp_approval_request",
          "mcp_approval_response",
          "tool_search_output",
          "additional_tools",
          "program",
          "program_output");

  /** Fields of a message besides its content that hold what is no text. */
  private static final List<String> ATTACHED = List.of("audio", "images", "files", "attachments");

  /** What media are, by a word in the name of their type. */
  private static final List<String> MEDIA = List.of("image", "screenshot", "audio", "video");

  /** What types of parts are that are no text, by a word in their name; the first one counts. */
  private static final List<Map.Entry<String, String>> NOUNS =
      List.of(
          Map.entry("image", "an image"),
          Map.entry("screenshot", "an image"),
          Map.entry("audio", "audio"),
          Map.entry("video", "a video"),
          Map.entry("file", "a file"),
          Map.entry("pdf", "a file"),
          Map.entry("upload", "a file"),
          Map.entry("document", "a document"));

  private MessageParts() {}

  /** Returns the parts of a message, in order. Throws for what is no text, by its number. */
  static List<Part> of(JsonObject message) {
    for (String name : ATTACHED) {
      if (isGiven(message, name)) {
        throw refused("", name);
      }
    }
    List<Part> parts = new ArrayList<>();
    text(message, "reasoning_content")
        .or(() -> text(message, "reasoning"))
        .ifPresent(one -> parts.add(new Thought(one)));
    List<Call> calls = calls(message);
    // LangChain repeats calls of the content, where arguments of a streamed reply are incomplete.
    Map<String, Call> byId = new LinkedHashMap<>();
    calls.stream().filter(one -> !one.id().isEmpty()).forEach(one -> byId.put(one.id(), one));
    for (Part part : content(message.get("content"), "")) {
      Call whole = part instanceof Call call ? byId.remove(call.id()) : null;
      calls.remove(whole);
      parts.add(whole == null ? part : whole);
    }
    if (isGiven(message, "refusal")) {
      parts.add(new Said(string(message.get("refusal"), "its refusal"), false));
    }
    parts.addAll(calls);
    if (isGiven(message, "function_call")) {
      parts.add(call(message.get("function_call"), "its function_call"));
    }
    return parts;
  }

  private static List<Call> calls(JsonObject message) {
    List<Call> calls = new ArrayList<>();
    for (JsonElement one : array(message.get("tool_calls"), "tool_calls")) {
      calls.add(call(one, "tool call " + (calls.size() + 1)));
    }
    return calls;
  }

  /**
   * Returns what is no text but an item beside messages, as OpenAI's Responses API has them; an
   * empty list for one without words, and nothing for other objects.
   */
  static Optional<List<Part>> items(JsonObject given, String where) {
    String kind = text(given, "type").orElse("");
    String within = where.isEmpty() ? "" : where + ", ";
    String what = where.isEmpty() ? "it" : where;
    if (RESULTS.stream().anyMatch(kind::endsWith)) {
      return Optional.of(List.of(result(given, within)));
    }
    if (CALLS.stream().anyMatch(kind::endsWith)) {
      return Optional.of(List.of(call(given, what)));
    }
    if (NAMELESS.containsKey(kind) || WITH_RESULTS.contains(kind)) {
      Call call = call(named(given, kind), what);
      return Optional.of(
          WITH_RESULTS.contains(kind)
              ? List.of(call, resultWithin(given, call, within))
              : List.of(call));
    }
    if (kind.endsWith("_call") && MEDIA.stream().anyMatch(kind::contains)) {
      throw refused(where.isEmpty() ? "" : where + ": ", kind);
    }
    boolean isWordless = WORDLESS.contains(kind) || kind.endsWith("_call");
    return isWordless ? Optional.of(List.of()) : Optional.empty();
  }

  /** Returns the result in a message of a tool, an item or a block. */
  static Result result(JsonObject given, String where) {
    JsonElement content = given.has("output") ? given.get("output") : given.get("content");
    List<String> texts = new ArrayList<>();
    for (Part part : content(content, where)) {
      if (part instanceof Said said) {
        texts.add(said.text());
      }
    }
    boolean failed =
        isGiven(given, "is_error") || text(given, "status").filter("error"::equals).isPresent();
    String id =
        text(given, "tool_call_id")
            .or(() -> text(given, "tool_use_id"))
            .or(() -> text(given, "call_id"))
            .orElse("");
    String name = text(given, "name").or(() -> text(given, "tool_name")).orElse("");
    return new Result(id, name, (failed ? "Error: " : "") + String.join("\n", texts));
  }

  private static JsonObject named(JsonObject given, String kind) {
    if (!NAMELESS.containsKey(kind)) {
      return given;
    }
    JsonObject found = given.deepCopy();
    found.addProperty("name", kind.substring(0, kind.length() - "_call".length()));
    found.add("arguments", given.get(NAMELESS.get(kind)));
    return found;
  }

  /** Returns the result that is in the item of its call. */
  private static Result resultWithin(JsonObject given, Call call, String where) {
    boolean failed = isGiven(given, "error");
    JsonObject found = new JsonObject();
    found.addProperty("call_id", call.id());
    found.addProperty("name", call.name());
    found.addProperty("is_error", failed);
    if (failed) {
      found.addProperty("output", written(given.get("error")));
    } else {
      found.add("output", given.get(isGiven(given, "output") ? "output" : "outputs"));
    }
    return result(found, where);
  }

  private static List<Part> content(JsonElement content, String where) {
    if (isNull(content)) {
      return List.of();
    }
    if (isText(content)) {
      return List.of(new Said(content.getAsString(), false));
    }
    List<Part> found = new ArrayList<>();
    List<JsonElement> parts =
        content.isJsonObject() ? List.of(content) : array(content, where + "its content");
    for (int number = 1; number <= parts.size(); number++) {
      JsonElement part = parts.get(number - 1);
      String at = where + "part " + number;
      if (isText(part)) {
        found.add(new Said(part.getAsString(), false));
      } else {
        found.addAll(block(object(part, at), at));
      }
    }
    return found;
  }

  private static List<Part> block(JsonObject block, String where) {
    String kind = text(block, "type").orElse("text");
    Optional<List<Part>> items = items(block, where);
    if (items.isPresent()) {
      return items.get();
    }
    boolean isOutput = !block.has("type") && block.has("stdout");
    if (kind.endsWith("_result") || kind.endsWith("_result_error") || isOutput) {
      return resultParts(block, kind, where);
    }
    if (TEXTS.containsKey(kind)) {
      String text = string(block.get(TEXTS.get(kind)), where);
      return List.of(new Said(text, isGiven(block, "citations")));
    }
    return switch (kind) {
      case "thinking" -> List.of(new Thought(string(block.get("thinking"), where)));
      case "document" -> document(block.get("source"), where);
      default -> throw refused(where + ": ", kind);
    };
  }

  /** Returns what is in a result of a tool of the provider, or of a shell. */
  private static List<Part> resultParts(JsonObject block, String kind, String where) {
    if (kind.endsWith("_result_error")) {
      return List.of(new Said("Error: " + text(block, "error_code").orElse(""), false));
    }
    if (kind.equals("web_search_result")) {
      String title = text(block, "title").orElse("");
      return List.of(new Said(title + " (" + text(block, "url").orElse("") + ")", false));
    }
    Optional<String> file = text(block, "file_type").filter(one -> !one.equals("text"));
    if (file.isPresent()) {
      throw refused(where + ": ", file.get());
    }
    JsonArray streams = new JsonArray();
    for (String name : List.of("stdout", "stderr")) {
      if (block.has(name)) {
        streams.add(text(block, name).orElse(""));
      }
    }
    // Beside what a program wrote, the content is ids of files.
    JsonElement content =
        streams.isEmpty() ? block.get(isGiven(block, "content") ? "content" : "lines") : streams;
    return content(content, where + ", ");
  }

  /** Returns the text of a document. Throws for a file. */
  private static List<Part> document(JsonElement source, String where) {
    JsonObject found =
        source != null && source.isJsonObject() ? source.getAsJsonObject() : new JsonObject();
    return switch (text(found, "type").orElse("")) {
      case "text" -> List.of(new Said(string(found.get("data"), where), false));
      case "content" -> content(found.get("content"), where + ", ");
      default -> throw refused(where + ": ", "document");
    };
  }

  private static Call call(JsonElement given, String where) {
    JsonObject call = object(given, where);
    JsonObject called = call;
    for (String within : List.of("custom", "function")) {
      called = isGiven(call, within) ? object(call.get(within), where) : called;
    }
    Optional<String> name = text(called, "name");
    if (name.isEmpty()) {
      throw new IllegalArgumentException(where + " has no name of a tool");
    }
    String arguments = "";
    for (String one : List.of("args", "input", "arguments")) {
      arguments = isNull(called.get(one)) ? arguments : written(called.get(one));
    }
    String id = text(call, "call_id").or(() -> text(call, "id")).orElse("");
    return new Call(id, name.get(), arguments);
  }

  /** Returns a text as it is, and other values as JSON. */
  private static String written(JsonElement given) {
    return isText(given) ? given.getAsString() : given.toString();
  }

  private static IllegalArgumentException refused(String where, String kind) {
    String noun =
        NOUNS.stream()
            .filter(one -> kind.contains(one.getKey()))
            .map(Map.Entry::getValue)
            .findFirst()
            .orElse("a part");
    return new IllegalArgumentException(
        where
            + noun
            + " ("
            + kind
            + ") is not remembered, only text is: put a text that describes it in its place, or"
            + " leave it out");
  }

  private static boolean isNull(JsonElement given) {
    return given == null || given.isJsonNull();
  }

  private static boolean isText(JsonElement given) {
    return given.isJsonPrimitive() && given.getAsJsonPrimitive().isString();
  }

  /** Returns whether a field has a value that says something. */
  static boolean isGiven(JsonObject object, String name) {
    JsonElement given = object.get(name);
    if (isNull(given)) {
      return false;
    }
    if (given.isJsonArray()) {
      return !given.getAsJsonArray().isEmpty();
    }
    if (given.isJsonObject()) {
      return !given.getAsJsonObject().isEmpty();
    }
    return !List.of("", "false", "0").contains(given.getAsString());
  }

  /** Returns a field that is a text and not empty. */
  static Optional<String> text(JsonObject object, String name) {
    JsonElement given = object.get(name);
    return isNull(given) || !isText(given)
        ? Optional.empty()
        : Optional.of(given.getAsString()).filter(one -> !one.isEmpty());
  }

  private static String string(JsonElement given, String where) {
    if (isNull(given) || !isText(given)) {
      throw new IllegalArgumentException(where + " must be a text");
    }
    return given.getAsString();
  }

  private static JsonObject object(JsonElement given, String where) {
    if (isNull(given) || !given.isJsonObject()) {
      throw new IllegalArgumentException(where + " must be an object");
    }
    return given.getAsJsonObject();
  }

  private static List<JsonElement> array(JsonElement given, String what) {
    if (isNull(given)) {
      return List.of();
    }
    if (!given.isJsonArray()) {
      throw new IllegalArgumentException(what + " must be a text or a list of parts");
    }
    return given.getAsJsonArray().asList();
  }
}
