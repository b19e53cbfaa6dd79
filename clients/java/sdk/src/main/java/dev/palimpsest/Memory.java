package dev.palimpsest;

import dev.palimpsest.v1.Answer;
import dev.palimpsest.v1.AskRequest;
import dev.palimpsest.v1.ConsolidateMemoryRequest;
import dev.palimpsest.v1.DeleteMemoryRequest;
import dev.palimpsest.v1.FlushMemoryRequest;
import dev.palimpsest.v1.FlushMemoryResponse;
import dev.palimpsest.v1.GetMemoryRequest;
import dev.palimpsest.v1.MemoryServiceGrpc;
import dev.palimpsest.v1.RebuildMemoryRequest;
import dev.palimpsest.v1.RetryMemoryRequest;
import dev.palimpsest.v1.UpdateMemoryRequest;
import java.time.Duration;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.function.Function;

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
public sealed class Memory<T> extends MemoryHistory permits Tree, State {
  private final Function<String, T> reader;

  Memory(Session session, String id, Optional<Duration> timeout, Function<String, T> reader) {
    super(session, id, timeout);
    this.reader = reader;
  }

  /** Returns the same memory, whose calls have this timeout. */
  public Memory<T> withTimeout(Duration timeout) {
    return new Memory<>(session().withTimeout(timeout), id(), Optional.of(timeout), reader);
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
        GetMemoryRequest.newBuilder().setSession(session().id()).setMemory(id());
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
        FlushMemoryRequest.newBuilder().setSession(session().id()).setMemory(id()).build();
    return connection.call(MemoryServiceGrpc.getFlushMemoryMethod(), request, timeout);
  }

  /** Asks the memory; returns the answer with its citations. */
  public Answer ask(String query) {
    return ask(query, request -> {});
  }

  /** Asks the memory; otherwise as {@link Session#ask(String, Consumer)}. */
  public Answer ask(String query, Consumer<AskRequest.Builder> options) {
    return session().ask(query, options.andThen(request -> request.setMemory(id())));
  }

  /** Asks the memory; otherwise as {@link Session#streamAsk(String, Consumer)}. */
  public AnswerStream streamAsk(String query, Consumer<AskRequest.Builder> options) {
    return session().streamAsk(query, options.andThen(request -> request.setMemory(id())));
  }

  /** Deletes the memory with its history; the log and the answers stay. */
  public void delete() {
    delete(request -> {});
  }

  /** Deletes the memory; the options say for example that it may be missing. */
  public void delete(Consumer<DeleteMemoryRequest.Builder> options) {
    DeleteMemoryRequest.Builder request =
        DeleteMemoryRequest.newBuilder().setSession(session().id()).setMemory(id());
    options.accept(request);
    connection.call(MemoryServiceGrpc.getDeleteMemoryMethod(), request.build(), timeout);
  }

  /**
   * Requests a consolidation: the model merges and shortens, once the log is read. Returns the
   * operation at once, or that of an earlier request that has not ended.
   */
  public Operation consolidate() {
    ConsolidateMemoryRequest request =
        ConsolidateMemoryRequest.newBuilder().setSession(session().id()).setMemory(id()).build();
    return operation(
        connection.call(MemoryServiceGrpc.getConsolidateMemoryMethod(), request, timeout));
  }

  /**
   * Changes settings: a schema with more fields, another model. What is set on the builder of the
   * memory's kind is changed.
   *
   * <pre>{@code
   * memory.update(wanted -> wanted.getPrismBuilder().setModel("openai/gpt-5-mini"));
   * }</pre>
   *
   * @throws PalimpsestException.InvalidArgument ({@code SCHEMA_INCOMPATIBLE} with the field, {@code
   *     MODEL_NOT_ALLOWED})
   */
  public dev.palimpsest.v1.Memory update(Consumer<dev.palimpsest.v1.Memory.Builder> changes) {
    return update(changes, request -> {});
  }

  /** Changes settings; the options have a comment and the revision that it must be at. */
  public dev.palimpsest.v1.Memory update(
      Consumer<dev.palimpsest.v1.Memory.Builder> changes,
      Consumer<UpdateMemoryRequest.Builder> options) {
    dev.palimpsest.v1.Memory.Builder wanted = dev.palimpsest.v1.Memory.newBuilder();
    changes.accept(wanted);
    wanted.setSession(session().id()).setId(id());
    UpdateMemoryRequest.Builder request = UpdateMemoryRequest.newBuilder();
    options.accept(request);
    request.setMemory(wanted).setUpdateMask(Memories.changed(wanted));
    return connection.call(MemoryServiceGrpc.getUpdateMemoryMethod(), request.build(), timeout);
  }

  /**
   * Reads the whole log again into a new memory; returns the operation at once. What is set on the
   * builder of the memory's kind is changed, and the rest is as it is here.
   *
   * @throws PalimpsestException.FailedPrecondition when a part of the log has expired, which the
   *     options of the other allow
   */
  public Operation rebuild(String newId, Consumer<dev.palimpsest.v1.Memory.Builder> changes) {
    return rebuild(newId, changes, request -> {});
  }

  /** Reads the whole log again into a new memory; otherwise as the other. */
  public Operation rebuild(
      String newId,
      Consumer<dev.palimpsest.v1.Memory.Builder> changes,
      Consumer<RebuildMemoryRequest.Builder> options) {
    dev.palimpsest.v1.Memory.Builder wanted = dev.palimpsest.v1.Memory.newBuilder();
    changes.accept(wanted);
    wanted.setSession(session().id()).setId(newId);
    RebuildMemoryRequest.Builder request = RebuildMemoryRequest.newBuilder();
    options.accept(request);
    request
        .setSession(session().id())
        .setMemory(id())
        .setNewMemory(wanted)
        .setUpdateMask(Memories.changed(wanted));
    return operation(
        connection.call(MemoryServiceGrpc.getRebuildMemoryMethod(), request.build(), timeout));
  }

  /** Retries a stalled memory where it stopped; returns whether it was stalled. */
  public boolean retry() {
    RetryMemoryRequest request =
        RetryMemoryRequest.newBuilder().setSession(session().id()).setMemory(id()).build();
    return connection.call(MemoryServiceGrpc.getRetryMemoryMethod(), request, timeout).getRetried()
        > 0;
  }
}
