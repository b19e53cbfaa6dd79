package dev.palimpsest;

import com.google.protobuf.FieldMask;
import dev.palimpsest.Times.Until;
import dev.palimpsest.v1.AppendChunksRequest;
import dev.palimpsest.v1.AppendRequest;
import dev.palimpsest.v1.AppendResponse;
import dev.palimpsest.v1.Chunk;
import dev.palimpsest.v1.ChunkFilter;
import dev.palimpsest.v1.GetSearchIndexRequest;
import dev.palimpsest.v1.GetSessionRequest;
import dev.palimpsest.v1.ListChunksRequest;
import dev.palimpsest.v1.ListChunksResponse;
import dev.palimpsest.v1.RedactChunksResponse;
import dev.palimpsest.v1.Retention;
import dev.palimpsest.v1.SearchChunksRequest;
import dev.palimpsest.v1.SearchChunksResponse;
import dev.palimpsest.v1.SearchIndex;
import dev.palimpsest.v1.SearchMemoriesRequest;
import dev.palimpsest.v1.SearchMemoriesResponse;
import dev.palimpsest.v1.SessionServiceGrpc;
import dev.palimpsest.v1.UpdateSessionRequest;
import io.grpc.Status;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.stream.Stream;

/** The part of {@link Session} that is about the session itself and its log. */
abstract class SessionLog extends Resource {
  private static final int PAGE_CHUNKS = 256;

  final String id;

  SessionLog(Connection connection, String id, Optional<Duration> timeout) {
    super(connection, id, "", timeout);
    this.id = id;
  }

  /** Returns the id. */
  public String id() {
    return id;
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
    var changed = dev.palimpsest.v1.Session.newBuilder().setEtag(etag).putAllMetadata(metadata);
    return update(changed, "metadata");
  }

  /**
   * Replaces how long data is kept, where that differs from the tenant's policy. What is not set is
   * as that policy says, and 0 is for ever.
   */
  public dev.palimpsest.v1.Session updateRetention(Retention retention) {
    return update(dev.palimpsest.v1.Session.newBuilder().setRetention(retention), "retention");
  }

  private dev.palimpsest.v1.Session update(dev.palimpsest.v1.Session.Builder changed, String path) {
    UpdateSessionRequest request =
        UpdateSessionRequest.newBuilder()
            .setSession(changed.setId(id))
            .setUpdateMask(FieldMask.newBuilder().addPaths(path))
            .build();
    return connection.call(SessionServiceGrpc.getUpdateSessionMethod(), request, timeout);
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
      AppendResponse response = send(request.build(), until);
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
   * Removes the content of chunks, and everything derived from it, for good.
   *
   * <pre>{@code
   * alice.forget(what -> what.text("+1 555 0100").reason("asked for by the user"));
   * }</pre>
   *
   * <p>Positions stay, as tombstones. Memories go back to before they read the chunks, and read the
   * log on from there. {@link Palimpsest#operation} waits until nothing derived is left; then
   * {@link Access#erasureReceipt} has the receipt.
   *
   * @throws IllegalArgumentException unless exactly one of positions, thread, source and text is
   *     given
   * @throws PalimpsestException.InvalidArgument ({@code TOO_MANY_CHUNKS})
   */
  public RedactChunksResponse forget(Consumer<ForgetOptions> options) {
    ForgetOptions given = new ForgetOptions();
    options.accept(given);
    return connection.call(SessionServiceGrpc.getRedactChunksMethod(), given.request(id), timeout);
  }

  /** Returns how much of the log has words and vectors in the index. */
  public SearchIndex searchIndex() {
    GetSearchIndexRequest request = GetSearchIndexRequest.newBuilder().setSession(id).build();
    return connection.call(SessionServiceGrpc.getGetSearchIndexMethod(), request, timeout);
  }

  /**
   * Returns a chunk, such as one that a citation names.
   *
   * @throws PalimpsestException.OutOfRange when the log ends before it
   */
  public Chunk chunk(long position) {
    ListChunksRequest.Builder request =
        ListChunksRequest.newBuilder().setSession(id).setPageSize(1);
    long at = Math.max(position, 0);
    request.getFilterBuilder().getPositionsBuilder().setFirst(at).setLast(at);
    ListChunksResponse page =
        connection.call(SessionServiceGrpc.getListChunksMethod(), request.build(), timeout);
    if (position < 1 || page.getChunksCount() == 0) {
      Map<String, String> ends =
          Map.of("position", String.valueOf(position), "head", String.valueOf(page.getHead()));
      String message =
          "session '%s' has no chunk at position %d: its log ends at %d"
              .formatted(id, position, page.getHead());
      throw PalimpsestException.of(
          new PalimpsestException.Details(
              Status.Code.OUT_OF_RANGE, message, "", ends, Map.of(), Optional.empty()),
          null);
    }
    return page.getChunks(0);
  }

  final AppendResponse send(AppendRequest request, Until until) {
    return connection.call(SessionServiceGrpc.getAppendMethod(), request, until, true);
  }
}
