package dev.palimpsest;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.Timestamp;
import dev.palimpsest.v1.AppendRequest;
import dev.palimpsest.v1.Chunk;
import java.util.Collections;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.Test;

class ConversationTest {

  private static Conversation of(Chunk... messages) {
    return Conversation.of(List.of(messages), new RememberOptions());
  }

  /** The digests are those that the Python client makes. */
  @Test
  void theDigestIsThatOfOtherClients() {
    Chunk said =
        Chunks.user("Grüße 🦜").toBuilder()
            .setThread("t")
            .setSource("s")
            .setOccurredAt(Timestamp.newBuilder().setSeconds(1_777_627_800).setNanos(250_000_000))
            .putMetadata("b", "2")
            .putMetadata("a", "1")
            .putMetadata("é", "3")
            .build();
    assertEquals("53b7fccc20e6d8c043964a9b92d86feb2223ebd4cfff0140baaa304b8d49b4a9", digest(said));
    Chunk step = Chunks.step("saw", "think", "do");
    Chunk first =
        step.toBuilder()
            .setAgentStep(step.getAgentStep().toBuilder().setObservedFirst(true))
            .build();
    assertEquals("8d240721933a056231a6f65c53c0ef7b632c20c299387316ddc30eb74fee8269", digest(first));
  }

  private static String digest(Chunk chunk) {
    return HexFormat.of().formatHex(Chunks.digested(chunk).getDigest().toByteArray());
  }

  @Test
  void longTextsAreCutAndNothingIsLost() {
    String text = "A sentence of some words. ".repeat(500).strip();
    List<Chunk> chunks = of(Chunks.text(text)).chunks();
    assertTrue(chunks.size() > 6 && chunks.size() < 14, "chunks: " + chunks.size());
    StringBuilder whole = new StringBuilder();
    chunks.forEach(one -> whole.append(one.getText()));
    assertEquals(text, whole.toString());
    String birds = "🦜".repeat(1500);
    assertEquals(birds, String.join("", Conversation.split(birds, 2001)));
    Conversation.split(birds, 2001)
        .forEach(one -> assertEquals(0, one.length() % 2, "a pair is whole"));
  }

  @Test
  void instructionsAndEmptyMessagesAreLeftOut() {
    Conversation talk =
        of(Chunks.message("system", "Be kind."), Chunks.user(" "), Chunks.user("Hello."));
    assertEquals(1, talk.chunks().size());
    assertEquals(2, talk.skipped());
    assertThrows(IllegalArgumentException.class, () -> of());
    assertThrows(IllegalArgumentException.class, () -> of(Chunks.text("")));
  }

  @Test
  void labelsAreThoseOfTheMessageElseOfAll() {
    Chunk own = Chunks.user("One.").toBuilder().setThread("mine").putMetadata("a", "1").build();
    Conversation talk =
        Conversation.of(
            List.of(own, Chunks.user("Two.")),
            new RememberOptions().thread("all").metadata("a", "0").metadata("b", "2"));
    assertEquals("mine", talk.chunks().get(0).getThread());
    assertEquals("1", talk.chunks().get(0).getMetadataOrThrow("a"));
    assertEquals("2", talk.chunks().get(0).getMetadataOrThrow("b"));
    assertEquals("all", talk.chunks().get(1).getThread());
  }

  @Test
  void manyMessagesAreSeveralRequestsWithLastingIds() {
    Conversation talk =
        Conversation.of(Collections.nCopies(600, Chunks.user("Hello.")), new RememberOptions());
    List<AppendRequest> requests = talk.requests("s", Optional.of("turn-1"));
    assertEquals(
        List.of(256, 256, 88), requests.stream().map(AppendRequest::getChunksCount).toList());
    assertEquals("turn-1", requests.get(0).getRequestId());
    assertEquals(requests, talk.requests("s", Optional.of("turn-1")));
    assertEquals(3, requests.stream().map(AppendRequest::getRequestId).distinct().count());
  }

  @Test
  void theQueryIsTheLastMessageOfTheUser() {
    List<Chunk> talk =
        List.of(
            Chunks.user("I am Ada."),
            Chunks.assistant("Hello Ada."),
            Chunks.user("Where is the museum?"),
            Chunks.assistant("Let me look."));
    assertEquals("Where is the museum?\nHello Ada.\nI am Ada.", Query.of(talk));
    assertEquals("", Query.of(List.of()));
  }
}
