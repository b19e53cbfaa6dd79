package dev.palimpsest;

import dev.palimpsest.v1.Chunk;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;

/** The query that messages are: the last one of the user, and what was said just before. */
final class Query {
  private static final int MAX_CHARACTERS = 16_000;
  private static final int CONTEXT_MESSAGES = 2;
  private static final int CONTEXT_CHARACTERS = 150;
  private static final Set<String> ANSWERING = Set.of("assistant", "system");

  private Query() {}

  /** Returns the query; without a message of the user it is the newest ones. */
  static String of(List<Chunk> messages) {
    List<String> newest = new ArrayList<>();
    boolean isFound = false;
    for (int index = messages.size() - 1; index >= 0; index--) {
      Chunk chunk = messages.get(index);
      String text = chunk.hasMessage() ? chunk.getMessage().getText() : chunk.getText();
      boolean isFull = isFound && newest.size() > CONTEXT_MESSAGES;
      if (text.isBlank() || isFull) {
        continue;
      }
      if (!isFound && !ANSWERING.contains(chunk.getMessage().getRole())) {
        isFound = true;
        newest.clear();
      }
      newest.add(text);
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
