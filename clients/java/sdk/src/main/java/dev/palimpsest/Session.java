package dev.palimpsest;

import dev.palimpsest.v1.BillingServiceGrpc;
import dev.palimpsest.v1.Budget;
import dev.palimpsest.v1.CostReport;
import dev.palimpsest.v1.FlushMemoryRequest;
import dev.palimpsest.v1.FlushMemoryResponse;
import dev.palimpsest.v1.GenerateSchemaRequest;
import dev.palimpsest.v1.GetCostReportRequest;
import dev.palimpsest.v1.ListUsageRequest;
import dev.palimpsest.v1.MemoryServiceGrpc;
import dev.palimpsest.v1.PrismSpec;
import dev.palimpsest.v1.StateSpec;
import dev.palimpsest.v1.StorageUsage;
import dev.palimpsest.v1.TreeSpec;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
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
public final class Session extends SessionAnswers {

  Session(Connection connection, String id, Optional<Duration> timeout) {
    super(connection, id, timeout);
  }

  /** Returns the same session, whose calls have this timeout. */
  public Session withTimeout(Duration timeout) {
    return new Session(connection, id, Optional.of(timeout));
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

  /** Creates a summary tree; it grows over the log from its beginning. */
  public Tree createTree(String memory, Consumer<TreeSpec.Builder> settings) {
    TreeSpec.Builder spec = TreeSpec.newBuilder();
    settings.accept(spec);
    create(dev.palimpsest.v1.Memory.newBuilder().setId(memory).setTree(spec));
    return tree(memory);
  }

  /** Returns a tree by its id; nothing is sent. */
  public Tree tree(String memory) {
    return new Tree(this, memory, timeout);
  }

  /** Creates a state memory; it compresses the log from its beginning. */
  public State createState(String memory, Consumer<StateSpec.Builder> settings) {
    StateSpec.Builder spec = StateSpec.newBuilder();
    settings.accept(spec);
    create(dev.palimpsest.v1.Memory.newBuilder().setId(memory).setState(spec));
    return state(memory);
  }

  /** Returns a state memory by its id; nothing is sent. */
  public State state(String memory) {
    return new State(this, memory, timeout);
  }

  /** Returns a memory by its id, with its value as a map; nothing is sent. */
  public Memory<Map<String, Object>> memory(String memory) {
    return new Memory<>(this, memory, timeout, Schemas::readMap);
  }

  /** Returns a memory by its id, with its value as a record; nothing is sent. */
  public <T extends Record> Memory<T> memory(String memory, Class<T> type) {
    return new Memory<>(this, memory, timeout, json -> Schemas.read(json, type));
  }

  /** Returns the memories of the session, by id. */
  public Stream<dev.palimpsest.v1.Memory> memories() {
    return listMemories(timeout);
  }

  /** Ends the wait of all memories for more chunks, and returns before they are read. */
  public FlushMemoryResponse flush() {
    FlushMemoryRequest request = FlushMemoryRequest.newBuilder().setSession(id).build();
    return connection.call(MemoryServiceGrpc.getFlushMemoryMethod(), request, timeout);
  }

  /**
   * Requests a schema for texts of a domain and questions like the example, which a model writes;
   * returns the operation at once.
   */
  public Operation requestSchema(String domain, String exampleQuery) {
    GenerateSchemaRequest request =
        GenerateSchemaRequest.newBuilder()
            .setSession(id)
            .setDomain(domain)
            .setExampleQuery(exampleQuery)
            .build();
    return new Operation(
        connection,
        connection.call(MemoryServiceGrpc.getGenerateSchemaMethod(), request, timeout),
        timeout);
  }

  /** Writes all of the session to a file; otherwise as the other. */
  public void export(Path path) {
    export(path, progress -> {});
  }

  /**
   * Writes all of the session to a file, for {@link Palimpsest#importSession}. A file with a part
   * of an export is continued; a complete one stays as it is. The consumer is called after each
   * block. What is in memory is a block, however long the session is.
   *
   * @throws PalimpsestException.Aborted when the export can no longer be continued ({@code
   *     EXPORT_CHANGED})
   * @throws IllegalArgumentException for a file with other content
   * @throws java.io.UncheckedIOException when the file cannot be written
   */
  public void export(Path path, Consumer<TransferProgress> onProgress) {
    Exports.toFile(connection, id, path, onProgress);
  }

  /**
   * Writes all of the session to a stream, which stays open; lost connections are made again. What
   * was written ends with a whole block, also after an error.
   */
  public void export(OutputStream out) {
    Exports.blocks(
        connection,
        id,
        new ExportLines(Optional.empty()),
        block -> {
          try {
            out.write(block);
          } catch (IOException error) {
            throw new UncheckedIOException(error);
          }
        });
  }

  /** Returns the budgets of the session, then those of its memories. */
  public Stream<Budget> budgets() {
    return listBudgets();
  }

  /** Returns the usage of the model calls of the session, by purpose and model. */
  public UsageReport usage() {
    return usage(request -> request.addGroupBy(ListUsageRequest.Grouping.GROUPING_PURPOSE));
  }

  /** Returns the usage of the session, or of a memory, by the groups and days of the options. */
  public UsageReport usage(Consumer<ListUsageRequest.Builder> options) {
    return readUsage(options);
  }

  /** Returns how much is stored of the session by kind, without indexes. */
  public List<StorageUsage.Size> storage() {
    return readStorage();
  }

  /** Explains the cost of the session, or of a memory of the options. */
  public CostReport costReport(Consumer<GetCostReportRequest.Builder> options) {
    GetCostReportRequest.Builder request = GetCostReportRequest.newBuilder();
    options.accept(request);
    return connection.call(
        BillingServiceGrpc.getGetCostReportMethod(), request.setSession(id).build(), timeout);
  }
}
