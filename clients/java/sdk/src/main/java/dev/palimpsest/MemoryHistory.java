package dev.palimpsest;

import dev.palimpsest.Times.Until;
import dev.palimpsest.v1.Amendment;
import dev.palimpsest.v1.DiffMemoriesRequest;
import dev.palimpsest.v1.DiffMemoriesResponse;
import dev.palimpsest.v1.Edit;
import dev.palimpsest.v1.EditMemoryRequest;
import dev.palimpsest.v1.EditMemoryResponse;
import dev.palimpsest.v1.FoldMemoryRequest;
import dev.palimpsest.v1.FoldMemoryResponse;
import dev.palimpsest.v1.GetProvenanceRequest;
import dev.palimpsest.v1.GetProvenanceResponse;
import dev.palimpsest.v1.ListAmendmentsRequest;
import dev.palimpsest.v1.ListRejectionsRequest;
import dev.palimpsest.v1.ListRevisionsRequest;
import dev.palimpsest.v1.MemoryServiceGrpc;
import dev.palimpsest.v1.Rejection;
import dev.palimpsest.v1.Revision;
import dev.palimpsest.v1.RollbackMemoryRequest;
import dev.palimpsest.v1.WatchMemoryRequest;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.stream.Stream;

/** The part of {@link Memory} that is about its history and changes by hand. */
abstract class MemoryHistory extends Resource {
  private final Session session;
  private final String id;

  MemoryHistory(Session session, String id, Optional<Duration> timeout) {
    super(session.connection, session.id(), id, timeout);
    this.session = session;
    this.id = id;
  }

  /** Returns the id. */
  public String id() {
    return id;
  }

  /** Returns the session that it belongs to. */
  public Session session() {
    return session;
  }

  final Operation operation(dev.palimpsest.v1.Operation info) {
    return new Operation(connection, info, timeout);
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

  /** Returns the model's proposals that the schema or a limit refused, oldest first. */
  public Stream<Rejection> rejections() {
    return connection.all(
        MemoryServiceGrpc.getListRejectionsMethod(),
        ListRejectionsRequest.newBuilder()
            .setSession(session.id())
            .setMemory(id)
            .setPageSize(PAGE)
            .build(),
        page -> page.getRejectionsList(),
        timeout);
  }

  /**
   * Compares a revision, the old side, with another one of this or another memory of the session;
   * the options name them. The default is the newest one.
   */
  public Stream<DiffMemoriesResponse.Difference> diff(
      Consumer<DiffMemoriesRequest.Builder> options) {
    DiffMemoriesRequest.Builder request =
        DiffMemoriesRequest.newBuilder().setSession(session.id()).setMemory(id).setPageSize(PAGE);
    options.accept(request);
    return connection.all(
        MemoryServiceGrpc.getDiffMemoriesMethod(),
        request.build(),
        page -> page.getDifferencesList(),
        timeout);
  }

  /** Writes the amendments into a new base; the value stays. */
  public FoldMemoryResponse fold() {
    FoldMemoryRequest request =
        FoldMemoryRequest.newBuilder().setSession(session.id()).setMemory(id).build();
    return connection.call(MemoryServiceGrpc.getFoldMemoryMethod(), request, timeout);
  }
}
