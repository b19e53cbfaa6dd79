package dev.palimpsest;

import dev.palimpsest.v1.Answer;
import dev.palimpsest.v1.AnswerServiceGrpc;
import dev.palimpsest.v1.AskRequest;
import dev.palimpsest.v1.CancelAnswerRequest;
import dev.palimpsest.v1.DeleteAnswerRequest;
import dev.palimpsest.v1.GetAnswerRequest;
import dev.palimpsest.v1.ListAnswersRequest;
import dev.palimpsest.v1.ListTrajectoryEventsRequest;
import dev.palimpsest.v1.RateAnswerRequest;
import dev.palimpsest.v1.TrajectoryEvent;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.stream.Stream;

/** The part of {@link Session} that is about its answers. */
abstract class SessionAnswers extends SessionMessages {

  SessionAnswers(Connection connection, String id, Optional<Duration> timeout) {
    super(connection, id, timeout);
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
    return AnswerStream.asked(
        connection, question(query, options), connection.timeoutOf(timeout, Connection.ASK));
  }

  private AskRequest question(String query, Consumer<AskRequest.Builder> options) {
    AskRequest.Builder request = AskRequest.newBuilder().setSession(id).setQuery(query);
    options.accept(request);
    return request.build();
  }

  /** Asks many questions; otherwise as the other. */
  public List<AskResult> askAll(List<String> queries) {
    return askAll(queries, request -> {});
  }

  /**
   * Asks many questions with the same options, 32 at once; returns how they ended in the same
   * order. 32 are stored together, or none of them when one is invalid. A question that fails has
   * its error in place of the answer, and the others continue. The timeout is that of 32.
   *
   * <pre>{@code
   * for (AskResult one : alice.askAll(List.of("Where does she live?", "What may she eat?"))) {
   *   System.out.println(one.answer().getText());
   * }
   * }</pre>
   */
  public List<AskResult> askAll(List<String> queries, Consumer<AskRequest.Builder> options) {
    List<AskRequest> questions = queries.stream().map(one -> question(one, options)).toList();
    Duration limit = connection.timeoutOf(timeout, Connection.ASK);
    List<AskResult> results = new ArrayList<>();
    for (int start = 0; start < questions.size(); start += ManyQuestions.MOST) {
      int end = Math.min(start + ManyQuestions.MOST, questions.size());
      results.addAll(new ManyQuestions(connection, questions.subList(start, end), limit).ask());
    }
    return List.copyOf(results);
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

  /** Deletes an answer; its usage stays. The options say for example that it may be missing. */
  public void deleteAnswer(String answer, Consumer<DeleteAnswerRequest.Builder> options) {
    DeleteAnswerRequest.Builder request = DeleteAnswerRequest.newBuilder();
    options.accept(request);
    request.setSession(id).setAnswer(answer);
    connection.call(AnswerServiceGrpc.getDeleteAnswerMethod(), request.build(), timeout);
  }

  /** Returns what the reader of an answer did, in order; pages are read as needed. */
  public Stream<TrajectoryEvent> trajectory(String answer) {
    return connection.all(
        AnswerServiceGrpc.getListTrajectoryEventsMethod(),
        ListTrajectoryEventsRequest.newBuilder()
            .setSession(id)
            .setAnswer(answer)
            .setPageSize(PAGE)
            .build(),
        page -> page.getEventsList(),
        timeout);
  }
}
