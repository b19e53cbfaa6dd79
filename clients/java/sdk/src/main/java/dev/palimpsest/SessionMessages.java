package dev.palimpsest;

import dev.palimpsest.PalimpsestException.Aborted;
import dev.palimpsest.PalimpsestException.AlreadyExists;
import dev.palimpsest.PalimpsestException.NotFound;
import dev.palimpsest.Times.Backoff;
import dev.palimpsest.Times.Until;
import dev.palimpsest.v1.AppendRequest;
import dev.palimpsest.v1.AppendResponse;
import dev.palimpsest.v1.Chunk;
import dev.palimpsest.v1.CreateSessionRequest;
import dev.palimpsest.v1.GetMemoryRequest;
import dev.palimpsest.v1.ListMemoriesRequest;
import dev.palimpsest.v1.MemoryServiceGrpc;
import dev.palimpsest.v1.ReadConsistency;
import dev.palimpsest.v1.RecallRequest;
import dev.palimpsest.v1.RecallResponse;
import dev.palimpsest.v1.SessionServiceGrpc;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Consumer;
import java.util.stream.Stream;

/** The part of {@link Session} that is about conversations; the session need not exist yet. */
abstract class SessionMessages extends SessionLog {
  /** Reasons of a memory that will never read more; there is nothing to wait for. */
  private static final Set<String> READS_NO_MORE = Set.of("MEMORY_NOT_FOUND", "MEMORY_SEALED");

  SessionMessages(Connection connection, String id, Optional<Duration> timeout) {
    super(connection, id, timeout);
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
    return remember(Messages.of(messages), options);
  }

  /** Stores messages as other clients have them; otherwise as the other. */
  public Remembered remember(Messages messages) {
    return remember(messages, options -> {});
  }

  /**
   * Stores messages as OpenAI's and Anthropic's clients have them, with calls of tools; otherwise
   * as {@link #remember(List, Consumer)}.
   *
   * @throws IllegalArgumentException for a message that cannot be remembered, by its number, before
   *     anything is sent
   */
  public Remembered remember(Messages messages, Consumer<RememberOptions> options) {
    RememberOptions given = new RememberOptions();
    options.accept(given);
    return remember(Conversation.of(messages, given), given);
  }

  private Remembered remember(Conversation talk, RememberOptions given) {
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
    return recall(Messages.of(messages), options);
  }

  /**
   * Returns what fits a conversation as other clients have it, whose images are left out; otherwise
   * as the others.
   */
  public RecallResponse recall(Messages messages, Consumer<RecallRequest.Builder> options) {
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

  private AppendResponse appendOrCreate(AppendRequest request, Until until) {
    try {
      return send(request, until);
    } catch (NotFound error) {
      if (!error.reason().equals("SESSION_NOT_FOUND")) {
        throw error;
      }
    }
    createUntil(until);
    return send(request, until);
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
      List<dev.palimpsest.v1.Memory> memories = listMemories(Optional.of(until.left())).toList();
      for (dev.palimpsest.v1.Memory memory : memories) {
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

  final Stream<dev.palimpsest.v1.Memory> listMemories(Optional<Duration> timeout) {
    return connection.all(
        MemoryServiceGrpc.getListMemoriesMethod(),
        ListMemoriesRequest.newBuilder().setSession(id).build(),
        page -> page.getMemoriesList(),
        timeout);
  }
}
