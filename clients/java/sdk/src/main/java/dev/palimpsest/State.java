package dev.palimpsest;

import dev.palimpsest.v1.GetWorkingContextRequest;
import dev.palimpsest.v1.ListStateVectorsRequest;
import dev.palimpsest.v1.StateServiceGrpc;
import dev.palimpsest.v1.StateVector;
import dev.palimpsest.v1.WorkingContext;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.stream.Stream;

/**
 * A state memory, by its id: it compresses the log, for a loop with short prompts; see {@link
 * Agent}. Methods for other kinds throw {@link PalimpsestException.FailedPrecondition}.
 */
public final class State extends Memory<Map<String, Object>> {
  private static final List<GetWorkingContextRequest.Form> FORMS =
      List.of(
          GetWorkingContextRequest.Form.FORM_PARTS,
          GetWorkingContextRequest.Form.FORM_TEXT,
          GetWorkingContextRequest.Form.FORM_MESSAGES);

  State(Session session, String id, Optional<Duration> timeout) {
    super(session, id, timeout, Schemas::readMap);
  }

  @Override
  public State withTimeout(Duration timeout) {
    return new State(session().withTimeout(timeout), id(), Optional.of(timeout));
  }

  /** Returns the working context as it is now; otherwise as the other. */
  public WorkingContext context() {
    return context(request -> {});
  }

  /**
   * Returns the working context: the vectors in use, and later chunks. Every chunk is in it, so
   * only {@code fully_applied} of the options waits, for compressions that are due; {@code
   * position} reads it as it was when the log ended there. Without {@code forms} of the options it
   * has all of them.
   *
   * @throws PalimpsestException.DeadlineExceeded ({@code NOT_APPLIED_IN_TIME})
   * @throws PalimpsestException.FailedPrecondition when the memory has stalled
   * @throws PalimpsestException.ResourceExhausted when a budget stops it, or the context passes a
   *     limit ({@code CONTEXT_TOO_LARGE})
   */
  public WorkingContext context(Consumer<GetWorkingContextRequest.Builder> options) {
    GetWorkingContextRequest.Builder request =
        GetWorkingContextRequest.newBuilder().setSession(session().id()).setMemory(id());
    options.accept(request);
    if (request.getFormsCount() == 0) {
      request.addAllForms(FORMS);
    }
    return connection.call(StateServiceGrpc.getGetWorkingContextMethod(), request.build(), timeout);
  }

  /** Returns the state vectors, oldest first; the options limit them to a level. */
  public Stream<StateVector> vectors(Consumer<ListStateVectorsRequest.Builder> options) {
    ListStateVectorsRequest.Builder request =
        ListStateVectorsRequest.newBuilder()
            .setSession(session().id())
            .setMemory(id())
            .setPageSize(PAGE);
    options.accept(request);
    return connection.all(
        StateServiceGrpc.getListStateVectorsMethod(),
        request.build(),
        page -> page.getVectorsList(),
        timeout);
  }
}
