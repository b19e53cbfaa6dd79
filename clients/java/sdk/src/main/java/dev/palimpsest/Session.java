package dev.palimpsest;

import com.google.protobuf.FieldMask;
import dev.palimpsest.PalimpsestException.Aborted;
import dev.palimpsest.PalimpsestException.AlreadyExists;
import dev.palimpsest.PalimpsestException.NotFound;
import dev.palimpsest.Times.Backoff;
import dev.palimpsest.Times.Until;
import dev.palimpsest.v1.Answer;
import dev.palimpsest.v1.AnswerServiceGrpc;
import dev.palimpsest.v1.AppendChunksRequest;
import dev.palimpsest.v1.AppendRequest;
import dev.palimpsest.v1.AppendResponse;
import dev.palimpsest.v1.AskRequest;
import dev.palimpsest.v1.CancelAnswerRequest;
import dev.palimpsest.v1.Chunk;
import dev.palimpsest.v1.ChunkFilter;
import dev.palimpsest.v1.CreateSessionRequest;
import dev.palimpsest.v1.GetAnswerRequest;
import dev.palimpsest.v1.GetMemoryRequest;
import dev.palimpsest.v1.GetSessionRequest;
import dev.palimpsest.v1.GetWorkingContextRequest;
import dev.palimpsest.v1.ListAnswersRequest;
import dev.palimpsest.v1.ListChunksRequest;
import dev.palimpsest.v1.ListMemoriesRequest;
import dev.palimpsest.v1.MemoryServiceGrpc;
import dev.palimpsest.v1.PrismSpec;
import dev.palimpsest.v1.RateAnswerRequest;
import dev.palimpsest.v1.ReadConsistency;
import dev.palimpsest.v1.RecallRequest;
import dev.palimpsest.v1.RecallResponse;
import dev.palimpsest.v1.RedactChunksRequest;
import dev.palimpsest.v1.RedactChunksResponse;
import dev.palimpsest.v1.SearchChunksRequest;
import dev.palimpsest.v1.SearchChunksResponse;
import dev.palimpsest.v1.SearchMemoriesRequest;
import dev.palimpsest.v1.SearchMemoriesResponse;
import dev.palimpsest.v1.SessionServiceGrpc;
import dev.palimpsest.v1.StateServiceGrpc;
import dev.palimpsest.v1.StateSpec;
import dev.palimpsest.v1.TreeSpec;
import dev.palimpsest.v1.UpdateSessionRequest;
import dev.palimpsest.v1.WorkingContext;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Consumer;
import java.util.stream.Stream;

/**
 * A session, by its id: a user, a project, a document or the run of an agent, with its log, its
 * memories and its answers.
 *
 * <p>Options of a call are set on the request of the API:
 *
 * <pre>{@code
 * session.recall("what may she eat?", request -> request.setMaxTokens(800));
 * }</pre>
 */
public final class Session {
  private static final int PAGE = 1000;
  private static final int PAGE_CHUNKS = 256;

  /** Reasons of a memory that will never read more; there is nothing to wait for. */
  private static final Set<String> READS_NO_MORE = Set.of("MEMORY_NOT_FOUND", "MEMORY_SEALED");

  private final Connection connection;
  private final String id;
  private final Optional<Duration> timeout;

  Session(Connection connection, String id, Optional<Duration> timeout) {
    this.connection = connection;
    this.id = id;
    this.timeout = timeout;
  }

  /** Returns the id. */
  public String id() {
    return id;
  }

  /** Returns the same session, whose calls have this timeout. */
  public Session withTimeout(Duration timeout) {
    return new Session(connection, id, Optional.of(timeout));
  }

  /** Returns its head, metadata and settings. */
  public dev.palimpsest.v1.Session info() {
    return connection.call(
        SessionServiceGrpc.getGetSessionMethod(),
        GetSessionRequest.newBuilder().setSession(id).build(),
        timeout);
  }

  /** Replaces the metadata. */
  public dev.palimpsest.v1.Session updateMetadata(Map<String, String> metadata) {
    return updateMetadata(metadata, "");
  }

  /** Replaces the metadata, unless the session was updated since it had this etag. */
  public dev.palimpsest.v1.Session updateMetadata(Map<String, String> metadata, String etag) {
    UpdateSessionRequest.Builder request =
        UpdateSessionRequest.newBuilder()
            .setUpdateMask(FieldMask.newBuilder().addPaths("metadata"));
    request.getSessionBuilder().setId(id).setEtag(etag).putAllMetadata(metadata);
    return connection.call(SessionServiceGrpc.getUpdateSessionMethod(), request.build(), timeout);
  }

  /** Stores a text; otherwise as {@link #remember(List, Consumer)}. */
  public Remembered remember(String text) {
    return remember(List.of(Chunks.text(text)));
  }

  /** Stores a text; otherwise as {@link #remember(List, Consumer)}. */
  public Remembered remember(String text, Consumer<RememberOptions> options) {
    return remember(List.of(Chunks.text(text)), options);
  }

  /** Stores messages; otherwise as {@link #remember(List, Consumer)}. */
  public Remembered remember(Chunk... messages) {
    return remember(List.of(messages));
  }

  /** Stores messages; otherwise as {@link #remember(List, Consumer)}. */
  public Remembered remember(List<Chunk> messages) {
    return remember(messages, options -> {});
  }

  /**
   * Stores messages, texts and steps; creates the session if it is missing.
   *
   * <p>All is durable when it returns, and stored once, however often the call has to be tried
   * within the timeout (60 seconds). Each call stores what it is given: pass only the messages that
   * are new. Long texts become several chunks. Left out are messages without text and, unless the
   * options include them, those of the system and the developer.
   *
   * <p>After an error something may be stored: its metadata has the {@code request_id} to continue
   * with.
   */
  public Remembered remember(List<Chunk> messages, Consumer<RememberOptions> options) {
    RememberOptions given = new RememberOptions();
    options.accept(given);
    Conversation talk = Conversation.of(messages, given);
    List<AppendRequest> requests = talk.requests(id, given.requestId);
    Until until = Until.after(connection.timeoutOf(timeout, Connection.APPEND));
    List<AppendResponse> done = new ArrayList<>();
    for (AppendRequest request : requests) {
      try {
        done.add(appendOrCreate(request, until));
      } catch (PalimpsestException error) {
        throw Conversation.storedInPart(error, requests, done.size());
      }
    }
    Remembered remembered = talk.remembered(requests, done);
    if (given.wait && !done.isEmpty()) {
      waitUntilRead(remembered, until);
    }
    return remembered;
  }

  /** Returns what the session knows that fits a query, as a text for a prompt. */
  public RecallResponse recall(String query) {
    return recall(query, request -> {});
  }

  /**
   * Returns what the session knows that fits a query, as a text for a prompt: entries of memories,
   * the chunks that fit best, and the newest ones, which no memory has read. Without a query it is
   * the newest messages. No language model is asked.
   *
   * <p>Of a session that does not exist nothing is known, which is no error.
   */
  public RecallResponse recall(String query, Consumer<RecallRequest.Builder> options) {
    return recall(List.of(Chunks.text(query)), options);
  }

  /**
   * Returns what fits a conversation: its last message of the user, with what was said just before;
   * otherwise as the others.
   */
  public RecallResponse recall(List<Chunk> messages, Consumer<RecallRequest.Builder> options) {
    RecallRequest.Builder request =
        RecallRequest.newBuilder().setSession(id).setQuery(Query.of(messages));
    options.accept(request);
    try {
      return connection.call(SessionServiceGrpc.getRecallMethod(), request.build(), timeout);
    } catch (NotFound error) {
      boolean asksForMore =
          request.getMemoriesCount() > 0 || !request.getConsistency().getAtLeast().isEmpty();
      if (asksForMore || !error.reason().equals("SESSION_NOT_FOUND")) {
        throw error;
      }
      return RecallResponse.getDefaultInstance();
    }
  }

  /** Appends chunks; otherwise as {@link #append(List, Consumer)}. */
  public Appended append(Chunk... chunks) {
    return append(List.of(chunks), request -> {});
  }

  /**
   * Appends chunks; all are stored, or none: 256 at most, of 1 MiB together. They are durable when
   * it returns, and stored once, however often the call has to be tried.
   *
   * <p>A request id of the options keeps that true over restarts of the program. Others are the
   * head that the log must have.
   *
   * @throws PalimpsestException.NotFound when there is no such session
   * @throws PalimpsestException.Aborted when the head is another ({@code HEAD_MISMATCH})
   */
  public Appended append(List<Chunk> chunks, Consumer<AppendRequest.Builder> options) {
    Conversation.check(chunks);
    AppendRequest.Builder request =
        AppendRequest.newBuilder().setSession(id).setRequestId(Connection.newId());
    options.accept(request);
    chunks.forEach(one -> request.addChunks(Chunks.digested(one)));
    Until until = Until.after(connection.timeoutOf(timeout, Connection.APPEND));
    try {
      AppendResponse response = append(request.build(), until);
      return new Appended(response.getPositions(), response.getReadToken(), request.getRequestId());
    } catch (PalimpsestException error) {
      if (Errors.isRefused(error)) {
        throw error;
      }
      throw PalimpsestException.reworded(
          error,
          error.getMessage()
              + "; it may be stored: append the same again with the request id \""
              + request.getRequestId()
              + "\", which stores it once",
          Map.of("request_id", request.getRequestId()));
    }
  }

  /** Opens a producer, for long streams from one process; otherwise as the other. */
  public Producer producer(String producerId) {
    return producer(producerId, Duration.ofMinutes(1), open -> {});
  }

  /**
   * Opens a producer, for long streams from one process.
   *
   * <p>Its id is a lasting name within the session; no two processes may use one name at once. A
   * higher {@code epoch} of the options fences older streams off. The producer fails when the
   * service is lost, or accepts nothing, for {@code giveUp}.
   *
   * @throws PalimpsestException.NotFound when there is no such session
   * @throws PalimpsestException.ProducerFenced when a newer epoch has opened it
   */
  public Producer producer(
      String producerId, Duration giveUp, Consumer<AppendChunksRequest.Open.Builder> options) {
    AppendChunksRequest.Open.Builder opening =
        AppendChunksRequest.Open.newBuilder().setSession(id).setProducerId(producerId);
    options.accept(opening);
    return Producer.open(connection, opening.build(), giveUp);
  }

  /** Returns the log from its beginning; pages are read as needed. */
  public Stream<Chunk> chunks() {
    return chunks(filter -> {});
  }

  /** Returns the chunks of the log that match; pages are read as needed. */
  public Stream<Chunk> chunks(Consumer<ChunkFilter.Builder> filter) {
    ListChunksRequest.Builder request =
        ListChunksRequest.newBuilder().setSession(id).setPageSize(PAGE_CHUNKS);
    filter.accept(request.getFilterBuilder());
    return connection.all(
        SessionServiceGrpc.getListChunksMethod(),
        request.build(),
        page -> page.getChunksList(),
        timeout);
  }

  /** Finds the chunks that match a query best: words, not an expression. */
  public SearchChunksResponse search(String query, Consumer<SearchChunksRequest.Builder> options) {
    SearchChunksRequest.Builder request =
        SearchChunksRequest.newBuilder().setSession(id).setQuery(query);
    options.accept(request);
    Until until = Until.after(connection.timeoutOf(timeout, Connection.CALL));
    // With a model in it, it costs: not repeated.
    return connection.call(
        SessionServiceGrpc.getSearchChunksMethod(), request.build(), until, !request.getRerank());
  }

  /** Finds the entries of the session's memories that match a query best. */
  public SearchMemoriesResponse searchMemories(
      String query, Consumer<SearchMemoriesRequest.Builder> options) {
    SearchMemoriesRequest.Builder request =
        SearchMemoriesRequest.newBuilder().setSession(id).setQuery(query);
    options.accept(request);
    return connection.call(SessionServiceGrpc.getSearchMemoriesMethod(), request.build(), timeout);
  }

  /**
   * Removes the content of chunks, and everything derived from it, for good. The options say which:
   * positions, a thread, a source or a text.
   */
  public RedactChunksResponse forget(Consumer<RedactChunksRequest.Builder> options) {
    RedactChunksRequest.Builder request = RedactChunksRequest.newBuilder().setSession(id);
    options.accept(request);
    return connection.call(SessionServiceGrpc.getRedactChunksMethod(), request.build(), timeout);
  }

  /** Creates a memory whose value is a record; otherwise as the other. */
  public <T extends Record> Memory<T> createMemory(String memory, Class<T> type) {
    return createMemory(memory, type, spec -> {});
  }

  /**
   * Creates a memory whose value is a record: its components are the schema. It reads the log from
   * its beginning, in the background.
   *
   * @throws PalimpsestException.AlreadyExists when there is one ({@code MEMORY_EXISTS})
   */
  public <T extends Record> Memory<T> createMemory(
      String memory, Class<T> type, Consumer<PrismSpec.Builder> settings) {
    PrismSpec.Builder spec = PrismSpec.newBuilder().setJsonSchema(Schemas.jsonSchemaOf(type));
    settings.accept(spec);
    create(dev.palimpsest.v1.Memory.newBuilder().setId(memory).setPrism(spec));
    return memory(memory, type);
  }

  /** Does as {@link #createMemory(String, Class)}, or uses the one with the same settings. */
  public <T extends Record> Memory<T> createMemoryIfMissing(String memory, Class<T> type) {
    return createMemoryIfMissing(memory, type, spec -> {});
  }

  /**
   * Creates a memory, or uses the one that is there with the same settings.
   *
   * @throws PalimpsestException.AlreadyExists that says which settings differ
   */
  public <T extends Record> Memory<T> createMemoryIfMissing(
      String memory, Class<T> type, Consumer<PrismSpec.Builder> settings) {
    PrismSpec.Builder spec = PrismSpec.newBuilder().setJsonSchema(Schemas.jsonSchemaOf(type));
    settings.accept(spec);
    createIfMissing(dev.palimpsest.v1.Memory.newBuilder().setId(memory).setPrism(spec));
    return memory(memory, type);
  }

  /** Creates a memory of any kind, by a schema as a text or a spec of a tree or a state. */
  public dev.palimpsest.v1.Memory create(dev.palimpsest.v1.Memory.Builder memory) {
    return Memories.create(connection, memory.setSession(id).build(), timeout);
  }

  /** Creates a memory of any kind, or uses the one that is there with the same settings. */
  public dev.palimpsest.v1.Memory createIfMissing(dev.palimpsest.v1.Memory.Builder memory) {
    return Memories.createIfMissing(connection, memory.setSession(id).build(), timeout);
  }

  /** Creates a summary tree over the log. */
  public Memory<Map<String, Object>> createTree(
      String memory, Consumer<TreeSpec.Builder> settings) {
    TreeSpec.Builder spec = TreeSpec.newBuilder();
    settings.accept(spec);
    create(dev.palimpsest.v1.Memory.newBuilder().setId(memory).setTree(spec));
    return memory(memory);
  }

  /** Creates a state memory, which compresses the log; see {@link #context}. */
  public Memory<Map<String, Object>> createState(
      String memory, Consumer<StateSpec.Builder> settings) {
    StateSpec.Builder spec = StateSpec.newBuilder();
    settings.accept(spec);
    create(dev.palimpsest.v1.Memory.newBuilder().setId(memory).setState(spec));
    return memory(memory);
  }

  /** Returns a memory by its id, with its value as a map; nothing is sent. */
  public Memory<Map<String, Object>> memory(String memory) {
    return new Memory<>(connection, this, memory, timeout, Schemas::readMap);
  }

  /** Returns a memory by its id, with its value as a record; nothing is sent. */
  public <T extends Record> Memory<T> memory(String memory, Class<T> type) {
    return new Memory<>(connection, this, memory, timeout, json -> Schemas.read(json, type));
  }

  /** Returns the memories of the session, by id. */
  public Stream<dev.palimpsest.v1.Memory> memories() {
    return connection.all(
        MemoryServiceGrpc.getListMemoriesMethod(),
        ListMemoriesRequest.newBuilder().setSession(id).build(),
        page -> page.getMemoriesList(),
        timeout);
  }

  /** Returns the working context of a state memory: its vectors in use, and later chunks. */
  public WorkingContext context(String memory, Consumer<GetWorkingContextRequest.Builder> options) {
    GetWorkingContextRequest.Builder request =
        GetWorkingContextRequest.newBuilder()
            .setSession(id)
            .setMemory(memory)
            .addForms(GetWorkingContextRequest.Form.FORM_PARTS)
            .addForms(GetWorkingContextRequest.Form.FORM_TEXT)
            .addForms(GetWorkingContextRequest.Form.FORM_MESSAGES);
    options.accept(request);
    return connection.call(StateServiceGrpc.getGetWorkingContextMethod(), request.build(), timeout);
  }

  /** Asks the session; returns the answer with its citations. */
  public Answer ask(String query) {
    return ask(query, request -> {});
  }

  /**
   * Asks the session, or with {@code memory} of the options one memory; returns the answer with its
   * citations. After a lost connection it waits for the rest of the same answer.
   *
   * <p>A late answer is not lost: the metadata of the error names it for {@link #resumeAnswer}.
   */
  public Answer ask(String query, Consumer<AskRequest.Builder> options) {
    try (AnswerStream events = events(query, options)) {
      return events.last();
    }
  }

  /**
   * Asks as {@link #ask} does; iterate over the text as it is written, then read the answer.
   *
   * <pre>{@code
   * try (AnswerStream stream = session.streamAsk("What may she eat?")) {
   *   stream.forEachRemaining(piece -> System.out.print(piece.getText()));
   *   stream.answer().getCitationsList();
   * }
   * }</pre>
   */
  public AnswerStream streamAsk(String query) {
    return streamAsk(query, request -> {});
  }

  /** Asks with options; iterate over the text as it is written, then read the answer. */
  public AnswerStream streamAsk(String query, Consumer<AskRequest.Builder> options) {
    return events(query, options.andThen(request -> request.setStreamText(true)));
  }

  private AnswerStream events(String query, Consumer<AskRequest.Builder> options) {
    AskRequest.Builder request = AskRequest.newBuilder().setSession(id).setQuery(query);
    options.accept(request);
    return AnswerStream.asked(
        connection, request.build(), connection.timeoutOf(timeout, Connection.ASK));
  }

  /** Waits for an answer; otherwise as {@link #resumeAnswer(String, int, int)}. */
  public Answer resumeAnswer(String answer) {
    try (AnswerStream rest = resumeAnswer(answer, 0, 0)) {
      return rest.last();
    }
  }

  /**
   * Returns what of an answer follows an event and a piece of its text. One that was abandoned
   * continues from its last model call.
   */
  public AnswerStream resumeAnswer(String answer, int afterEvent, int afterText) {
    return AnswerStream.resumed(
        connection,
        id,
        answer,
        afterEvent,
        afterText,
        connection.timeoutOf(timeout, Connection.ASK));
  }

  /** Returns a stored answer. */
  public Answer answer(String answer) {
    return connection.call(
        AnswerServiceGrpc.getGetAnswerMethod(),
        GetAnswerRequest.newBuilder().setSession(id).setAnswer(answer).build(),
        timeout);
  }

  /** Returns the stored answers, newest first; pages are read as needed. */
  public Stream<Answer> answers() {
    return connection.all(
        AnswerServiceGrpc.getListAnswersMethod(),
        ListAnswersRequest.newBuilder().setSession(id).setPageSize(PAGE).build(),
        page -> page.getAnswersList(),
        timeout);
  }

  /** Ends the work on an answer, if it has not ended; returns it. */
  public Answer cancelAnswer(String answer) {
    return connection.call(
        AnswerServiceGrpc.getCancelAnswerMethod(),
        CancelAnswerRequest.newBuilder().setSession(id).setAnswer(answer).build(),
        timeout);
  }

  /** Rates an answer that is done; returns it. */
  public Answer rate(String answer, Consumer<RateAnswerRequest.Builder> rating) {
    RateAnswerRequest.Builder request =
        RateAnswerRequest.newBuilder().setSession(id).setAnswer(answer);
    rating.accept(request);
    return connection.call(AnswerServiceGrpc.getRateAnswerMethod(), request.build(), timeout);
  }

  private AppendResponse append(AppendRequest request, Until until) {
    return connection.call(SessionServiceGrpc.getAppendMethod(), request, until, true);
  }

  private AppendResponse appendOrCreate(AppendRequest request, Until until) {
    try {
      return append(request, until);
    } catch (NotFound error) {
      if (!error.reason().equals("SESSION_NOT_FOUND")) {
        throw error;
      }
    }
    createUntil(until);
    return append(request, until);
  }

  /** Creates the session unless it exists; waits while a deleted one is being removed. */
  private void createUntil(Until until) {
    CreateSessionRequest.Builder request = CreateSessionRequest.newBuilder();
    request.getSessionBuilder().setId(id);
    Backoff backoff = new Backoff(Connection.FIRST_PAUSE);
    while (true) {
      try {
        connection.call(SessionServiceGrpc.getCreateSessionMethod(), request.build(), until, true);
        return;
      } catch (AlreadyExists error) {
        if (error.reason().equals("SESSION_EXISTS")) {
          return;
        }
        throw error;
      } catch (Aborted error) {
        Duration pause = backoff.pause(error);
        if (!error.reason().equals("BEING_DELETED") || !until.isWithin(pause)) {
          throw error;
        }
        Times.sleep(pause);
      }
    }
  }

  /** Waits until all memories have read it; one that cannot does not end the wait for others. */
  private void waitUntilRead(Remembered remembered, Until until) {
    Optional<PalimpsestException> first = Optional.empty();
    try {
      for (dev.palimpsest.v1.Memory memory : withTimeout(until.left()).memories().toList()) {
        boolean isSealed = memory.getStatus() == dev.palimpsest.v1.Memory.Status.STATUS_SEALED;
        if (isSealed || (first.isPresent() && until.left().isZero())) {
          continue;
        }
        try {
          GetMemoryRequest.Builder request =
              GetMemoryRequest.newBuilder().setSession(id).setMemory(memory.getId());
          request.setConsistency(ReadConsistency.newBuilder().setAtLeast(remembered.readToken()));
          connection.call(MemoryServiceGrpc.getGetMemoryMethod(), request.build(), until, true);
        } catch (PalimpsestException error) {
          first =
              READS_NO_MORE.contains(error.reason()) ? first : first.or(() -> Optional.of(error));
        }
      }
    } catch (PalimpsestException error) {
      first = Optional.of(error);
    }
    if (first.isPresent()) {
      throw storedUnread(first.get(), remembered);
    }
  }

  private static PalimpsestException storedUnread(
      PalimpsestException error, Remembered remembered) {
    String later =
        error.reason().equals("MEMORY_STALLED")
            ? "this memory reads it once it is retried"
            : "memories will read it";
    return PalimpsestException.reworded(
        error,
        error.getMessage()
            + ". Everything is stored all the same, and "
            + later
            + ": do not pass it again",
        Map.of("request_id", remembered.requestId(), "read_token", remembered.readToken()));
  }
}
