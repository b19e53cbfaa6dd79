package dev.palimpsest.conformance;

import static dev.palimpsest.conformance.Replies.list;
import static dev.palimpsest.conformance.Replies.object;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import dev.palimpsest.Appended;
import dev.palimpsest.Producer;
import dev.palimpsest.RememberOptions;
import dev.palimpsest.Remembered;
import dev.palimpsest.Session;
import dev.palimpsest.v1.CreateSessionRequest;
import dev.palimpsest.v1.DefaultMemory;
import dev.palimpsest.v1.RecallRequest;
import dev.palimpsest.v1.RecallSection;
import dev.palimpsest.v1.SearchMode;
import dev.palimpsest.v1.SessionServiceGrpc;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Function;

/** Calls of sessions, their logs and producers. */
final class SessionCalls {
  private final Client client;

  SessionCalls(Client client) {
    this.client = client;
  }

  Map<String, Function<Arguments, JsonElement>> calls() {
    return Map.ofEntries(
        Map.entry("create_session", this::createSession),
        Map.entry("get_session", a -> Replies.message(client.session(a).info())),
        Map.entry("list_sessions", this::listSessions),
        Map.entry("update_session", this::updateSession),
        Map.entry("delete_session", this::deleteSession),
        Map.entry("remember", this::remember),
        Map.entry("recall", this::recall),
        Map.entry("append", this::append),
        Map.entry("list_chunks", this::listChunks),
        Map.entry("search_chunks", this::searchChunks),
        Map.entry("open_producer", this::openProducer),
        Map.entry("send", this::send),
        Map.entry("flush", a -> Replies.ack(client.<Producer>handle(a).flush())),
        Map.entry("close_producer", this::closeProducer));
  }

  private JsonElement createSession(Arguments a) {
    CreateSessionRequest.Builder request = CreateSessionRequest.newBuilder();
    request.getSessionBuilder().setId(a.text("session"));
    a.texts("language", request.getSessionBuilder()::setLanguage);
    a.texts("request_id", request::setRequestId);
    if (a.has("metadata")) {
      request.getSessionBuilder().putAllMetadata(a.map("metadata"));
    }
    a.ifGiven("retention", Arguments::retention)
        .ifPresent(request.getSessionBuilder()::setRetention);
    if (a.has("default_memory")) {
      request
          .getSessionBuilder()
          .setDefaultMemory(
              a.isSet("default_memory")
                  ? DefaultMemory.DEFAULT_MEMORY_GENERAL
                  : DefaultMemory.DEFAULT_MEMORY_NONE);
    }
    if (a.isSet("exist_ok")) {
      return Replies.message(
          client
              .get()
              .createSessionIfMissing(
                  a.text("session"),
                  wanted -> wanted.mergeFrom(request.getSessionBuilder().build()))
              .info());
    }
    return Replies.message(
        client.get().call(SessionServiceGrpc.getCreateSessionMethod(), request.build()));
  }

  private JsonElement listSessions(Arguments a) {
    return object("sessions", list(client.get().sessions().toList(), Replies::message));
  }

  private JsonElement updateSession(Arguments a) {
    Session session = client.session(a);
    return Replies.message(
        a.has("retention")
            ? session.updateRetention(Arguments.retention(a.json().get("retention")))
            : session.updateMetadata(a.map("metadata"), a.text("etag", "")));
  }

  private JsonElement deleteSession(Arguments a) {
    client
        .get()
        .deleteSession(
            a.text("session"),
            request -> {
              request.setAllowMissing(a.isSet("missing_ok"));
              a.texts("request_id", request::setRequestId);
            });
    return new JsonObject();
  }

  private JsonElement remember(Arguments a) {
    Remembered done =
        client.session(a).remember(a.messages("messages"), given -> remember(a, given));
    return object(
        "positions", done.positions().map(Replies::positions),
        "read_token", done.readToken(),
        "request_id", done.requestId(),
        "chunks", done.chunks(),
        "skipped", done.skipped());
  }

  private static void remember(Arguments a, RememberOptions given) {
    a.texts("thread", given::thread);
    a.texts("source", given::source);
    a.texts("occurred_at", one -> given.occurredAt(Instant.parse(one)));
    a.texts("request_id", given::requestId);
    if (a.has("metadata")) {
      a.map("metadata").forEach(given::metadata);
    }
    if (a.isSet("include_system")) {
      given.includeSystem();
    }
    if (a.isSet("wait")) {
      given.waitUntilRead();
    }
  }

  private JsonElement recall(Arguments a) {
    var found = client.session(a).recall(a.messages("query"), request -> recall(a, request));
    return object(
        "text", found.getText(),
        "tokens", found.getTokens(),
        "parts",
            list(
                found.getPartsList(),
                one ->
                    object(
                        "section", Replies.lower(one.getSection(), "RECALL_SECTION_"),
                        "text", one.getText(),
                        "positions", Replies.positions(one.getPositions()))),
        "read_token", found.getReadPoint().getReadToken());
  }

  private static void recall(Arguments a, RecallRequest.Builder request) {
    a.number("tokens", one -> request.setMaxTokens(one.intValue()));
    request.addAllMemories(a.names("memories"));
    for (String one : a.names("sections")) {
      request.addSections(RecallSection.valueOf("RECALL_SECTION_" + one.toUpperCase(Locale.ROOT)));
    }
    a.filter(request.getFilterBuilder());
    a.consistency(request.getConsistencyBuilder());
  }

  private JsonElement append(Arguments a) {
    Appended done =
        client
            .session(a)
            .append(
                a.chunks("chunks"),
                request -> {
                  a.number("expected_head", request::setExpectedHead);
                  a.texts("request_id", request::setRequestId);
                });
    return object(
        "positions", Replies.positions(done.positions()),
        "read_token", done.readToken(),
        "request_id", done.requestId());
  }

  private JsonElement listChunks(Arguments a) {
    return object("chunks", list(client.session(a).chunks(a::filter).toList(), Replies::chunk));
  }

  private JsonElement searchChunks(Arguments a) {
    var found =
        client
            .session(a)
            .search(
                a.text("query"),
                request -> {
                  a.number("limit", one -> request.setLimit(one.intValue()));
                  a.texts("mode", one -> request.setMode(mode(one)));
                  a.consistency(request.getConsistencyBuilder());
                });
    return object(
        "results", list(found.getResultsList(), Replies::message),
        "mode", Replies.lower(found.getMode(), "SEARCH_MODE_"));
  }

  private static SearchMode mode(String name) {
    return name.equals("auto")
        ? SearchMode.SEARCH_MODE_UNSPECIFIED
        : SearchMode.valueOf("SEARCH_MODE_" + name.toUpperCase(Locale.ROOT));
  }

  private JsonElement openProducer(Arguments a) {
    Producer producer =
        client
            .session(a)
            .producer(
                a.text("producer_id"),
                a.seconds("give_up_seconds").orElse(Duration.ofMinutes(1)),
                open -> {
                  a.number("epoch", open::setEpoch);
                  a.number("expected_head", open::setExpectedHead);
                });
    client.keep(a, producer);
    return object("last_acked_sequence", producer.lastAckedSequence());
  }

  private JsonElement send(Arguments a) {
    Producer producer = client.handle(a);
    List<Long> sequences = a.chunks("chunks").stream().map(producer::append).toList();
    return object(
        "first_sequence", sequences.get(0),
        "last_sequence", sequences.get(sequences.size() - 1));
  }

  private JsonElement closeProducer(Arguments a) {
    Producer producer = client.handle(a);
    producer.close();
    return object("last_acked_sequence", producer.lastAckedSequence());
  }
}
