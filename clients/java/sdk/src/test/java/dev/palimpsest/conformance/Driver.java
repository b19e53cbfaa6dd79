package dev.palimpsest.conformance;

import static dev.palimpsest.conformance.Replies.list;
import static dev.palimpsest.conformance.Replies.object;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import dev.palimpsest.Agent;
import dev.palimpsest.AnswerStream;
import dev.palimpsest.Appended;
import dev.palimpsest.Edits;
import dev.palimpsest.Memory;
import dev.palimpsest.Palimpsest;
import dev.palimpsest.Producer;
import dev.palimpsest.RememberOptions;
import dev.palimpsest.Remembered;
import dev.palimpsest.Schemas;
import dev.palimpsest.Session;
import dev.palimpsest.Watch;
import dev.palimpsest.v1.AskRequest;
import dev.palimpsest.v1.Chunk;
import dev.palimpsest.v1.CreateMemoryRequest;
import dev.palimpsest.v1.CreateSessionRequest;
import dev.palimpsest.v1.DefaultMemory;
import dev.palimpsest.v1.Edit;
import dev.palimpsest.v1.GetMemoryRequest;
import dev.palimpsest.v1.GetProvenanceResponse;
import dev.palimpsest.v1.MemoryServiceGrpc;
import dev.palimpsest.v1.ReadConsistency;
import dev.palimpsest.v1.Reader;
import dev.palimpsest.v1.RecallRequest;
import dev.palimpsest.v1.RecallSection;
import dev.palimpsest.v1.SearchMode;
import dev.palimpsest.v1.SessionServiceGrpc;
import dev.palimpsest.v1.WorkingContext;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.Function;

/** Makes the calls that the runner of clients/conformance/ sends, with the client's public API. */
public final class Driver {
  private static final JsonObject NOTHING = new JsonObject();

  private final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
  private final ExecutorService threads = Executors.newCachedThreadPool(Driver::daemon);
  private final Map<String, Object> handles = new ConcurrentHashMap<>();
  private final Map<String, Function<Arguments, JsonElement>> calls =
      Map.ofEntries(
          Map.entry("connect", this::connect),
          Map.entry("create_session", this::createSession),
          Map.entry("get_session", a -> Replies.message(session(a).info())),
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
          Map.entry("flush", a -> Replies.ack(this.<Producer>handle(a).flush())),
          Map.entry("close_producer", this::closeProducer),
          Map.entry("create_memory", this::createMemory),
          Map.entry("get_memory", this::getMemory),
          Map.entry("list_memories", this::listMemories),
          Map.entry("delete_memory", this::deleteMemory),
          Map.entry("edit_memory", this::editMemory),
          Map.entry("wait_until_applied", this::waitUntilApplied),
          Map.entry("get_provenance", this::getProvenance),
          Map.entry("watch_memory", this::watchMemory),
          Map.entry("next_revision", a -> Replies.revision(this.<Watch>handle(a).next())),
          Map.entry("close_watch", this::closeWatch),
          Map.entry("ask", a -> Replies.answer(session(a).ask(a.text("query"), r -> ask(a, r)))),
          Map.entry("stream_ask", this::streamAsk),
          Map.entry("next_piece", this::nextPiece),
          Map.entry("close_stream", this::closeStream),
          Map.entry("resume_answer", this::resumeAnswer),
          Map.entry(
              "cancel_answer", a -> Replies.answer(session(a).cancelAnswer(a.text("answer_id")))),
          Map.entry("get_answer", a -> Replies.answer(session(a).answer(a.text("answer_id")))),
          Map.entry("open_agent", this::openAgent),
          Map.entry("record_steps", this::recordSteps),
          Map.entry("get_context", this::getContext),
          Map.entry("close_agent", this::closeAgent));

  private volatile Palimpsest client;

  private Driver() {}

  /** Runs until the input ends. */
  public static void main(String[] arguments) throws IOException {
    Driver driver = new Driver();
    BufferedReader lines =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      JsonObject command = JsonParser.parseString(line).getAsJsonObject();
      driver.threads.execute(() -> driver.run(command));
    }
    System.exit(0);
  }

  private static Thread daemon(Runnable work) {
    Thread thread = new Thread(work);
    thread.setDaemon(true);
    return thread;
  }

  private void run(JsonObject command) {
    JsonObject reply = object("id", command.get("id"));
    String name = command.get("call").getAsString();
    JsonElement given = command.get("args");
    try {
      if (!calls.containsKey(name)) {
        reply.addProperty("unsupported", "the Java client has no " + name);
      } else {
        Arguments arguments =
            new Arguments(given == null ? new JsonObject() : given.getAsJsonObject());
        reply.add("result", calls.get(name).apply(arguments));
      }
    } catch (UnsupportedOperationException error) {
      reply.addProperty("unsupported", error.getMessage());
    } catch (RuntimeException error) {
      reply.add("error", Replies.error(error));
    }
    synchronized (out) {
      out.println(reply);
    }
  }

  private Session session(Arguments a) {
    Session session = client.session(a.text("session"));
    return a.seconds("timeout").map(session::withTimeout).orElse(session);
  }

  private Memory<?> memory(Arguments a) {
    return a.has("type")
        ? session(a).memory(a.text("memory"), Profile.class)
        : session(a).memory(a.text("memory"));
  }

  @SuppressWarnings("unchecked") // A script uses a handle for what it opened under this name.
  private <T> T handle(Arguments a) {
    return (T) handles.get(a.text("handle"));
  }

  private JsonElement connect(Arguments a) {
    Palimpsest.Builder builder =
        Palimpsest.builder().target(a.text("target", System.getenv("PALIMPSEST_URL")));
    a.texts("token", builder::token);
    a.texts("ca_file", one -> builder.caFile(Path.of(one)));
    a.seconds("timeout").ifPresent(builder::timeout);
    a.seconds("reach_seconds").ifPresent(builder::reachFor);
    client = builder.connect();
    return object("sdk", "java", "version", Palimpsest.version());
  }

  private JsonElement createSession(Arguments a) {
    CreateSessionRequest.Builder request = CreateSessionRequest.newBuilder();
    request.getSessionBuilder().setId(a.text("session"));
    a.texts("language", request.getSessionBuilder()::setLanguage);
    a.texts("request_id", request::setRequestId);
    if (a.has("metadata")) {
      request.getSessionBuilder().putAllMetadata(a.map("metadata"));
    }
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
              .createSessionIfMissing(
                  a.text("session"),
                  wanted -> wanted.mergeFrom(request.getSessionBuilder().build()))
              .info());
    }
    return Replies.message(
        client.call(SessionServiceGrpc.getCreateSessionMethod(), request.build()));
  }

  private JsonElement listSessions(Arguments a) {
    return object("sessions", list(client.sessions().toList(), Replies::message));
  }

  private JsonElement updateSession(Arguments a) {
    return Replies.message(session(a).updateMetadata(a.map("metadata"), a.text("etag", "")));
  }

  private JsonElement deleteSession(Arguments a) {
    client.deleteSession(
        a.text("session"),
        request -> {
          request.setAllowMissing(a.isSet("missing_ok"));
          a.texts("request_id", request::setRequestId);
        });
    return NOTHING;
  }

  private JsonElement remember(Arguments a) {
    Remembered done = session(a).remember(a.chunks("messages"), given -> remember(a, given));
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
    var found = session(a).recall(a.chunks("query"), request -> recall(a, request));
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
    consistency(a, request.getConsistencyBuilder());
  }

  private static void consistency(Arguments a, ReadConsistency.Builder consistency) {
    a.texts("after", consistency::setAtLeast);
    consistency.setFullyApplied(a.isSet("fully_applied"));
  }

  private JsonElement append(Arguments a) {
    Appended done =
        session(a)
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
    return object("chunks", list(session(a).chunks(a::filter).toList(), Replies::message));
  }

  private JsonElement searchChunks(Arguments a) {
    var found =
        session(a)
            .search(
                a.text("query"),
                request -> {
                  a.number("limit", one -> request.setLimit(one.intValue()));
                  a.texts("mode", one -> request.setMode(mode(one)));
                  consistency(a, request.getConsistencyBuilder());
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
        session(a)
            .producer(
                a.text("producer_id"),
                a.seconds("give_up_seconds").orElse(Duration.ofMinutes(1)),
                open -> {
                  a.number("epoch", open::setEpoch);
                  a.number("expected_head", open::setExpectedHead);
                });
    handles.put(a.text("handle"), producer);
    return object("last_acked_sequence", producer.lastAckedSequence());
  }

  private JsonElement send(Arguments a) {
    Producer producer = handle(a);
    List<Long> sequences = a.chunks("chunks").stream().map(producer::append).toList();
    return object(
        "first_sequence", sequences.get(0),
        "last_sequence", sequences.get(sequences.size() - 1));
  }

  private JsonElement closeProducer(Arguments a) {
    Producer producer = handle(a);
    producer.close();
    return object("last_acked_sequence", producer.lastAckedSequence());
  }

  private JsonElement createMemory(Arguments a) {
    CreateMemoryRequest.Builder request = CreateMemoryRequest.newBuilder();
    request.getMemoryBuilder().setSession(a.text("session")).setId(a.text("memory"));
    var spec = request.getMemoryBuilder().getPrismBuilder();
    a.texts("task", spec::setTask);
    a.texts("schema_source", spec::setSchemaSource);
    a.ifGiven("json_schema", one -> one.isJsonObject() ? one.toString() : one.getAsString())
        .ifPresent(spec::setJsonSchema);
    a.texts("request_id", request::setRequestId);
    if (a.has("type")) {
      spec.setJsonSchema(Schemas.jsonSchemaOf(Profile.class));
    }
    return Replies.memory(
        a.isSet("exist_ok")
            ? session(a).createIfMissing(request.getMemoryBuilder())
            : client.call(MemoryServiceGrpc.getCreateMemoryMethod(), request.build()));
  }

  private JsonElement getMemory(Arguments a) {
    return Replies.state(memory(a).get(request -> read(a, request)));
  }

  private static void read(Arguments a, GetMemoryRequest.Builder request) {
    a.number("revision", request::setRevision);
    a.number("position", request::setPosition);
    if (a.has("after") || a.isSet("fully_applied")) {
      consistency(a, request.getConsistencyBuilder());
    }
  }

  private JsonElement listMemories(Arguments a) {
    return object("memories", list(session(a).memories().toList(), Replies::memory));
  }

  private JsonElement deleteMemory(Arguments a) {
    memory(a).delete(request -> request.setAllowMissing(a.isSet("missing_ok")));
    return NOTHING;
  }

  private JsonElement editMemory(Arguments a) {
    List<Edit> edits =
        a.items("edits").stream().map(one -> edit(new Arguments(one.getAsJsonObject()))).toList();
    var done =
        memory(a)
            .edit(
                edits,
                request -> {
                  a.number("expected_revision", request::setExpectedRevision);
                  a.texts("comment", request::setComment);
                  a.texts("request_id", request::setRequestId);
                });
    return object(
        "revision", done.getMemory().getRevision(),
        "amendments", list(done.getAmendmentsList(), Replies::amendment));
  }

  private static Edit edit(Arguments a) {
    String path = a.text("path");
    Object value =
        a.ifGiven("value", one -> Schemas.read(one.toString(), Object.class)).orElse(null);
    return switch (a.text("op")) {
      case "add" -> Edits.add(path, value);
      case "update" -> Edits.update(path, value);
      case "remove" -> Edits.remove(path);
      default -> Edits.put(path, value);
    };
  }

  private JsonElement waitUntilApplied(Arguments a) {
    return Replies.state(memory(a).waitUntilApplied(a.text("after")));
  }

  private JsonElement getProvenance(Arguments a) {
    GetProvenanceResponse found = memory(a).provenance(a.text("path"));
    return object(
        "path", found.getPath(),
        "exists", found.hasValueJson(),
        "value", found.hasValueJson() ? JsonParser.parseString(found.getValueJson()) : null,
        "entries", list(found.getEntriesList(), Driver::entry));
  }

  private static JsonElement entry(GetProvenanceResponse.Entry entry) {
    var amendment = entry.getAmendment();
    return object(
        "revision", amendment.getRevision(),
        "op", Replies.lower(amendment.getOp(), "AMENDMENT_OP_"),
        "positions", amendment.hasPositions() ? Replies.positions(amendment.getPositions()) : null,
        "in_effect", entry.getInEffect(),
        "chunks", list(entry.getChunksList(), Replies::message));
  }

  private JsonElement watchMemory(Arguments a) {
    Watch watch =
        memory(a)
            .watch(
                a.seconds("give_up_seconds").orElse(Duration.ofMinutes(1)),
                request -> {
                  a.number("after_revision", request::setAfterRevision);
                  a.texts("resume_token", request::setResumeToken);
                });
    handles.put(a.text("handle"), watch);
    return NOTHING;
  }

  private JsonElement closeWatch(Arguments a) {
    Watch watch = handle(a);
    watch.close();
    return object("resume_token", watch.resumeToken());
  }

  private static void ask(Arguments a, AskRequest.Builder request) {
    a.texts("memory", request::setMemory);
    a.texts(
        "reader", r -> request.setReader(Reader.valueOf("READER_" + r.toUpperCase(Locale.ROOT))));
    if (a.has("after") || a.isSet("fully_applied")) {
      consistency(a, request.getConsistencyBuilder());
    }
    a.ifGiven("response_schema", one -> one.isJsonObject() ? one.toString() : one.getAsString())
        .ifPresent(request::setResponseSchema);
  }

  private JsonElement streamAsk(Arguments a) {
    AnswerStream stream = session(a).streamAsk(a.text("query"), request -> ask(a, request));
    handles.put(a.text("handle"), stream);
    return object("answer_id", stream.answerId());
  }

  private JsonElement nextPiece(Arguments a) {
    AnswerStream stream = handle(a);
    if (!stream.hasNext()) {
      return object("answer", Replies.answer(stream.answer()));
    }
    var piece = stream.next();
    return object("text", piece.getText(), "restarts", piece.getRestarts());
  }

  private JsonElement closeStream(Arguments a) {
    this.<AnswerStream>handle(a).close();
    return NOTHING;
  }

  private JsonElement resumeAnswer(Arguments a) {
    int[] after = new int[2];
    a.number("after_event", one -> after[0] = one.intValue());
    a.number("after_text", one -> after[1] = one.intValue());
    try (AnswerStream rest = session(a).resumeAnswer(a.text("answer_id"), after[0], after[1])) {
      rest.forEachRemaining(piece -> {});
      return Replies.answer(rest.answer());
    }
  }

  private JsonElement openAgent(Arguments a) {
    Agent agent =
        client.agent(
            a.text("session"),
            options -> {
              a.texts("memory", options::memory);
              a.texts("task", task -> options.spec(spec -> spec.setTask(task)));
              a.number(
                  "period_tokens",
                  one -> options.spec(spec -> spec.setPeriodTokens(one.intValue())));
              a.seconds("give_up_seconds").ifPresent(options::giveUp);
              a.seconds("wait_seconds").ifPresent(options::waitFor);
            });
    handles.put(a.text("handle"), agent);
    return object("step", agent.step());
  }

  private JsonElement recordSteps(Arguments a) {
    Agent agent = handle(a);
    Producer.Ack last = null;
    for (JsonElement one : a.items("steps")) {
      Chunk step = Arguments.step(new Arguments(one.getAsJsonObject()));
      last = agent.record(step);
    }
    return object("position", last.position(), "read_token", last.readToken());
  }

  private JsonElement getContext(Arguments a) {
    WorkingContext context = this.<Agent>handle(a).context();
    return object(
        "text", context.getText(),
        "head", context.getHead(),
        "vectors", list(context.getVectorsList(), Replies::message),
        "recent", list(context.getRecentList(), Replies::message));
  }

  private JsonElement closeAgent(Arguments a) {
    Agent agent = handle(a);
    agent.close();
    return object("step", agent.step());
  }
}
