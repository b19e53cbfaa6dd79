package dev.palimpsest;

import dev.palimpsest.Times.Until;
import dev.palimpsest.v1.Amendment;
import dev.palimpsest.v1.Answer;
import dev.palimpsest.v1.AskRequest;
import dev.palimpsest.v1.DeleteMemoryRequest;
import dev.palimpsest.v1.Edit;
import dev.palimpsest.v1.EditMemoryRequest;
import dev.palimpsest.v1.EditMemoryResponse;
import dev.palimpsest.v1.FlushMemoryRequest;
import dev.palimpsest.v1.FlushMemoryResponse;
import dev.palimpsest.v1.GetMemoryRequest;
import dev.palimpsest.v1.GetProvenanceRequest;
import dev.palimpsest.v1.GetProvenanceResponse;
import dev.palimpsest.v1.ListAmendmentsRequest;
import dev.palimpsest.v1.ListRevisionsRequest;
import dev.palimpsest.v1.MemoryServiceGrpc;
import dev.palimpsest.v1.Revision;
import dev.palimpsest.v1.RollbackMemoryRequest;
import dev.palimpsest.v1.WatchMemoryRequest;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.stream.Stream;

/**
 * A memory, by its id, with its value as a {@code T}.
 *
 * <pre>{@code
 * record Profile(@Description("As she signs.") String name, List<String> allergies) {}
 *
 * Memory<Profile> profile = alice.createMemory("profile", Profile.class);
 * profile.waitUntilApplied(remembered.readToken());
 * profile.get().value().allergies();
 * }</pre>
 *
 * <p>What is not here is a call of the API: {@link Palimpsest#call}.
 */
public final class Memory<T> {
  private static final int PAGE = 1000;

  private final Connection connection;
  private final Session session;
  private final String id;
  private final Optional<Duration> timeout;
  private final Function<String, T> reader;

  Memory(
      Connection connection,
      Session session,
      String id,
      Optional<Duration> timeout,
      Function<String, T> reader) {
    this.connection = connection;
    this.session = session;
    this.id = id;
    this.timeout = timeout;
    this.reader = reader;
  }

  /** Returns the id. */
  public String id() {
    return id;
  }

  /** Returns the session that it belongs to. */
  public Session session() {
    return session;
  }

  /** Returns the same memory, whose calls have this timeout. */
  public Memory<T> withTimeout(Duration timeout) {
    return new Memory<>(connection, session.withTimeout(timeout), id, Optional.of(timeout), reader);
  }

  /** Reads the memory as it is now. */
  public MemoryState<T> get() {
    return get(request -> {});
  }

  /**
   * Reads the memory as it was, by {@code revision} or {@code position} of the options, or once it
   * is fresh enough, by their {@code consistency}.
   *
   * @throws PalimpsestException.DeadlineExceeded whose metadata says how much is applied
   * @throws PalimpsestException.FailedPrecondition when the memory has stalled
   */
  public MemoryState<T> get(Consumer<GetMemoryRequest.Builder> options) {
    GetMemoryRequest.Builder request =
        GetMemoryRequest.newBuilder().setSession(session.id()).setMemory(id);
    options.accept(request);
    dev.palimpsest.v1.Memory found =
        connection.call(MemoryServiceGrpc.getGetMemoryMethod(), request.build(), timeout);
    return new MemoryState<>(reader.apply(found.getValueJson()), found);
  }

  /** Waits until the memory has read what a token stands for; returns it as it is then. */
  public MemoryState<T> waitUntilApplied(String readToken) {
    return get(request -> request.getConsistencyBuilder().setAtLeast(readToken));
  }

  /** Waits until the memory has read all that is in the log now; returns it as it is then. */
  public MemoryState<T> waitUntilApplied() {
    return get(request -> request.getConsistencyBuilder().setFullyApplied(true));
  }

  /** Ends the wait for more chunks, and returns before they are read. */
  public FlushMemoryResponse flush() {
    FlushMemoryRequest request =
        FlushMemoryRequest.newBuilder().setSession(session.id()).setMemory(id).build();
    return connection.call(MemoryServiceGrpc.getFlushMemoryMethod(), request, timeout);
  }

  /** Makes changes by hand; see {@link Edits}. */
  public EditMemoryResponse edit(Edit... edits) {
    return edit(List.of(edits), request -> {});
  }

  /**
   * Makes all changes, in order, as one revision; or none. The options have a comment, a request id
   * and the revision that the memory must be at.
   *
   * @throws PalimpsestException.InvalidArgument that names the edit ({@code EDIT_INVALID})
   * @throws PalimpsestException.Aborted when it is at another one ({@code REVISION_CONFLICT})
   */
  public EditMemoryResponse edit(List<Edit> edits, Consumer<EditMemoryRequest.Builder> options) {
    EditMemoryRequest.Builder request =
        EditMemoryRequest.newBuilder().setSession(session.id()).setMemory(id).addAllEdits(edits);
    options.accept(request);
    return connection.call(MemoryServiceGrpc.getEditMemoryMethod(), request.build(), timeout);
  }

  /** Restores an earlier revision, as a new revision. */
  public dev.palimpsest.v1.Memory rollback(long revision) {
    RollbackMemoryRequest request =
        RollbackMemoryRequest.newBuilder()
            .setSession(session.id())
            .setMemory(id)
            .setRevision(revision)
            .build();
    return connection.call(MemoryServiceGrpc.getRollbackMemoryMethod(), request, timeout);
  }

  /**
   * Returns the value at a path, and the amendments that made it, newest first, with the chunks
   * that were read for them.
   */
  public GetProvenanceResponse provenance(String path) {
    GetProvenanceRequest.Builder request =
        GetProvenanceRequest.newBuilder().setSession(session.id()).setMemory(id).setPath(path);
    Until until = Until.after(connection.timeoutOf(timeout, Connection.CALL));
    GetProvenanceResponse.Builder whole = null;
    do {
      GetProvenanceResponse page =
          connection.call(MemoryServiceGrpc.getGetProvenanceMethod(), request.build(), until, true);
      whole =
          whole == null
              ? page.toBuilder()
              : whole
                  .addAllEntries(page.getEntriesList())
                  .setNextPageToken(page.getNextPageToken());
      request.setPageToken(page.getNextPageToken());
    } while (!whole.getNextPageToken().isEmpty());
    return whole.build();
  }

  /** Returns the revisions, oldest first; pages are read as needed. */
  public Stream<Revision> revisions() {
    return connection.all(
        MemoryServiceGrpc.getListRevisionsMethod(),
        ListRevisionsRequest.newBuilder()
            .setSession(session.id())
            .setMemory(id)
            .setPageSize(PAGE)
            .build(),
        page -> page.getRevisionsList(),
        timeout);
  }

  /** Returns the amendments that made the memory, oldest first; pages are read as needed. */
  public Stream<Amendment> amendments() {
    return connection.all(
        MemoryServiceGrpc.getListAmendmentsMethod(),
        ListAmendmentsRequest.newBuilder()
            .setSession(session.id())
            .setMemory(id)
            .setPageSize(PAGE)
            .build(),
        page -> page.getAmendmentsList(),
        timeout);
  }

  /** Watches the memory from now on; otherwise as the other. */
  public Watch watch() {
    return watch(Duration.ofMinutes(1), request -> {});
  }

  /**
   * Watches the memory: on return every further revision will be seen. The options say after which
   * revision to begin, or by a resume token where another watch was. The watch fails when the
   * service is lost for {@code giveUp}.
   */
  public Watch watch(Duration giveUp, Consumer<WatchMemoryRequest.Builder> options) {
    WatchMemoryRequest.Builder request =
        WatchMemoryRequest.newBuilder().setSession(session.id()).setMemory(id);
    options.accept(request);
    return Watch.open(connection, request.build(), giveUp);
  }

  /** Asks the memory; returns the answer with its citations. */
  public Answer ask(String query) {
    return ask(query, request -> {});
  }

  /** Asks the memory; otherwise as {@link Session#ask(String, Consumer)}. */
  public Answer ask(String query, Consumer<AskRequest.Builder> options) {
    return session.ask(query, options.andThen(request -> request.setMemory(id)));
  }

  /** Asks the memory; otherwise as {@link Session#streamAsk(String, Consumer)}. */
  public AnswerStream streamAsk(String query, Consumer<AskRequest.Builder> options) {
    return session.streamAsk(query, options.andThen(request -> request.setMemory(id)));
  }

  /** Deletes the memory with its history; the log and the answers stay. */
  public void delete() {
    delete(request -> {});
  }

  /** Deletes the memory; the options say for example that it may be missing. */
  public void delete(Consumer<DeleteMemoryRequest.Builder> options) {
    DeleteMemoryRequest.Builder request =
        DeleteMemoryRequest.newBuilder().setSession(session.id()).setMemory(id);
    options.accept(request);
    connection.call(MemoryServiceGrpc.getDeleteMemoryMethod(), request.build(), timeout);
  }
}
