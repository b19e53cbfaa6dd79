package dev.palimpsest;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.palimpsest.v1.Chunk;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class MessagesTest {

  private static Conversation of(String json) {
    return Conversation.of(Messages.json(json.replace('\'', '"')), new RememberOptions());
  }

  private static String refusal(String json) {
    return assertThrows(IllegalArgumentException.class, () -> of(json)).getMessage();
  }

  @Test
  void aCallAndItsResultAreOneStepInOpenAisForm() {
    Conversation talk =
        of(
            """
            [{'role': 'user', 'content': [{'type': 'text', 'text': 'How warm is it?'}]},
             {'role': 'assistant', 'content': 'I ask.', 'tool_calls': [
               {'id': 'c1', 'type': 'function',
                'function': {'name': 'weather', 'arguments': '{\\'city\\': \\'Oslo\\'}'}},
               {'id': 'c2', 'type': 'function', 'function': {'name': 'time', 'arguments': ''}}]},
             {'role': 'tool', 'tool_call_id': 'c2', 'content': 'noon'},
             {'role': 'tool', 'tool_call_id': 'c1', 'content': [{'type': 'text', 'text': '3 °C'}]},
             {'role': 'assistant', 'content': 'It is cold.'}]
            """
                .replace("\\'", "\\\""));
    assertEquals(0, talk.skipped());
    assertEquals(
        List.of(
            Chunks.user("How warm is it?"),
            Chunks.step("3 °C", "I ask.", "weather({\"city\": \"Oslo\"})"),
            Chunks.step("noon", "", "time()"),
            Chunks.assistant("It is cold.")),
        talk.chunks().stream().map(one -> one.toBuilder().clearDigest().build()).toList());
  }

  @Test
  void aCallAndItsResultAreOneStepInAnthropicsForm() {
    Conversation talk =
        of(
            """
            [{'role': 'assistant', 'content': [
               {'type': 'thinking', 'thinking': 'Which city?'},
               {'type': 'text', 'text': 'I ask.'},
               {'type': 'tool_use', 'id': 't1', 'name': 'weather', 'input': {'city': 'Oslo'}}]},
             {'role': 'user', 'content': [
               {'type': 'tool_result', 'tool_use_id': 't1', 'is_error': true, 'content': 'none'},
               {'type': 'text', 'text': 'Try again.'}]}]
            """);
    assertEquals(
        List.of(
            Chunks.step("Error: none", "Which city?\nI ask.", "weather({\"city\":\"Oslo\"})"),
            Chunks.user("Try again.")),
        talk.chunks().stream().map(one -> one.toBuilder().clearDigest().build()).toList());
  }

  @Test
  void itemsBesideMessagesAreThoseOfResponses() {
    Conversation talk =
        of(
            """
            [{'type': 'reasoning', 'summary': []},
             {'type': 'function_call', 'call_id': 'f', 'name': 'look', 'arguments': '{}'},
             {'type': 'function_call_output', 'call_id': 'f', 'output': 'a door'},
             {'type': 'message', 'role': 'assistant',
              'content': [{'type': 'output_text', 'text': 'There is a door.'}]}]
            """);
    assertEquals(1, talk.skipped());
    assertEquals(
        List.of(Chunks.step("a door", "", "look({})"), Chunks.assistant("There is a door.")),
        talk.chunks().stream().map(one -> one.toBuilder().clearDigest().build()).toList());
  }

  @Test
  void resultsBelongToTheLatestCallThatWaits() {
    Conversation talk =
        of(
            """
            [{'role': 'assistant', 'content': null,
              'tool_calls': [{'id': 'c', 'function': {'name': 'first', 'arguments': ''}}]},
             {'role': 'assistant', 'content': null,
              'tool_calls': [{'id': 'c', 'function': {'name': 'second', 'arguments': ''}}]},
             {'role': 'tool', 'tool_call_id': 'c', 'content': 'done'},
             {'role': 'tool', 'tool_call_id': 'x', 'content': 'alone'}]
            """);
    assertEquals(
        List.of("first()|", "second()|done", "|alone"),
        talk.chunks().stream()
            .map(Chunk::getAgentStep)
            .map(step -> step.getAction() + "|" + step.getObservation())
            .toList());
  }

  @Test
  void whatIsNoTextIsRefusedByItsNumber() {
    String image = "{'type': 'image_url', 'image_url': {'url': 'data:,'}}";
    String refused =
        refusal(
            "[{'role': 'user', 'content': 'See.'},{'role': 'user', 'content': [%s]}]"
                .formatted(image));
    assertTrue(refused.startsWith("message 2: part 1: an image (image_url)"), refused);
    assertTrue(refusal("[{'role': 'user'}]").contains("no content"));
    assertTrue(refusal("[{'role': 'user', 'content': 3}]").contains("must be a text or a list"));
    assertTrue(refusal("[{'choices': []}]").contains("whole reply"));
    assertTrue(refusal("[3]").startsWith("message 1: it is not a text"));
    assertTrue(refusal("[{'role': 'user', 'content': 'Hi.', 'name': 'a/b'}]").contains("no id"));
    assertTrue(
        refusal("[{'role': 'assistant', 'content': '', 'tool_calls': [{'function': {}}]}]")
            .contains("tool call 1 has no name"));
    String secret = refusal("my secret is 12345 [");
    assertTrue(!secret.contains("12345"), secret);
  }

  @Test
  void messagesOfMapsHaveTheirLabels() {
    Map<String, Object> message = new HashMap<>();
    message.put("role", "user");
    message.put("content", "Hello.");
    message.put("name", "ana");
    message.put("occurred_at", "2026-05-01T09:30:00+02:00");
    message.put("metadata", Map.of("app", "web"));
    List<Object> messages = List.of(message, "A text.", Chunks.assistant("Hello Ana."));
    Conversation talk = Conversation.of(Messages.of(messages), new RememberOptions().thread("t"));
    Chunk first = talk.chunks().get(0);
    assertEquals("ana", first.getSource());
    assertEquals("t", first.getThread());
    assertEquals(1_777_620_600, first.getOccurredAt().getSeconds());
    assertEquals("web", first.getMetadataOrThrow("app"));
    assertEquals("A text.", talk.chunks().get(1).getText());
    assertThrows(IllegalArgumentException.class, () -> Messages.of(List.of(3)));
  }

  @Test
  void instructionsAreLeftOutUnlessTheyAreWanted() {
    String json = "[{'role': 'developer', 'content': 'Be kind.'}]".replace('\'', '"');
    assertEquals(1, Conversation.of(Messages.json(json), new RememberOptions()).skipped());
    assertEquals(
        1,
        Conversation.of(Messages.json(json), new RememberOptions().includeSystem())
            .chunks()
            .size());
  }

  @Test
  void aQueryLeavesOutWhatIsNoText() {
    String image = "{'type': 'image_url', 'image_url': {'url': 'data:,'}}";
    String seen = "{'role': 'user', 'content': [{'type': 'text', 'text': 'Who is it?'}, %s]}";
    assertEquals("Who is it?", query("[" + seen.formatted(image) + "]"));
    assertThrows(
        IllegalArgumentException.class,
        () -> query("[{'role': 'user', 'content': [%s]}]".formatted(image)));
    String call =
        "{'role': 'assistant', 'content': null,"
            + " 'tool_calls': [{'id': 'c', 'function': {'name': 'f', 'arguments': ''}}]}";
    String result = "{'role': 'tool', 'tool_call_id': 'c', 'content': 'done'}";
    String wrong = "{'role': 'user', 'content': 5}";
    String talk = "[%s, %s, %s, %s, %s, %s]";
    assertEquals(
        "Where?\nHere.\nNow?",
        query(
            talk.formatted(
                wrong,
                "{'role': 'user', 'content': 'Now?'}",
                "{'role': 'assistant', 'content': 'Here.'}",
                "{'role': 'user', 'content': 'Where?'}",
                call,
                result)));
  }

  private static String query(String json) {
    return Query.of(Messages.json(json.replace('\'', '"')));
  }
}
