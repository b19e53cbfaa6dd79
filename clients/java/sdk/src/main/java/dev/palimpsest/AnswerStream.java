package dev.palimpsest;

import com.google.protobuf.Message;
import dev.palimpsest.PalimpsestException.Details;
import dev.palimpsest.Times.Backoff;
import dev.palimpsest.Times.Until;
import dev.palimpsest.v1.Answer;
import dev.palimpsest.v1.AnswerServiceGrpc;
import dev.palimpsest.v1.AskEvent;
import dev.palimpsest.v1.AskRequest;
import dev.palimpsest.v1.ResumeAnswerRequest;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.function.Consumer;

/**
 * The text of an answer as it is written; {@link #answer} is there after the last piece.
 *
 * <p>A piece that {@code restarts} voids those before it. After a lost connection the rest is
 * requested, so that each piece is received once. One thread reads it; any thread may close it,
 * which leaves the answer to the service.
 */
public final class AnswerStream implements Iterator<AskEvent.Text>, AutoCloseable {
  private final Connection connection;
  private final String session;
  private final Until until;
  private final Backoff backoff = new Backoff(Connection.FIRST_PAUSE);
  private volatile Optional<Responses<AskEvent>> responses = Optional.empty();
  private volatile boolean closed;
  private volatile String answerId = "";
  private final Optional<AskRequest> question;
  private Consumer<AskEvent> listener = event -> {};

  /** Ordinals of the last event and the last piece of text. */
  private int event;

  private int piece;
  private Optional<AskEvent.Text> next = Optional.empty();
  private Optional<Answer> answer = Optional.empty();

  private AnswerStream(
      Connection connection, String session, Optional<AskRequest> question, Duration timeout) {
    this.connection = connection;
    this.session = session;
    this.question = question;
    this.until = Until.after(timeout);
  }

  static AnswerStream asked(Connection connection, AskRequest request, Duration timeout) {
    return new AnswerStream(connection, request.getSession(), Optional.of(request), timeout);
  }

  static AnswerStream resumed(
      Connection connection,
      String session,
      String answer,
      int afterEvent,
      int afterText,
      Duration timeout) {
    AnswerStream stream = new AnswerStream(connection, session, Optional.empty(), timeout);
    stream.answerId = answer;
    stream.event = afterEvent;
    stream.piece = afterText;
    return stream;
  }

  /** Receives each event of the reader, once, also when the connection is lost. */
  public AnswerStream onEvent(Consumer<AskEvent> listener) {
    this.listener = listener;
    return this;
  }

  /** Returns the id of the answer, which waits for the service to name it. */
  public String answerId() {
    while (answerId.isEmpty() && answer.isEmpty() && !closed) {
      read();
    }
    return answerId;
  }

  /** Returns whether the service has named the answer, so that it can be resumed. */
  boolean isNamed() {
    return !answerId.isEmpty();
  }

  /** Waits for the next piece; false after the last one, and once the stream is closed. */
  @Override
  public boolean hasNext() {
    while (next.isEmpty() && answer.isEmpty() && !closed) {
      read();
    }
    return next.isPresent();
  }

  /** Waits for the next piece, and returns it. */
  @Override
  public AskEvent.Text next() {
    if (!hasNext()) {
      throw new NoSuchElementException("the answer is complete, or its stream is closed");
    }
    AskEvent.Text found = next.orElseThrow();
    next = Optional.empty();
    return found;
  }

  /**
   * Returns the whole answer.
   *
   * @throws IllegalStateException before the last piece
   */
  public Answer answer() {
    return answer.orElseThrow(
        () -> new IllegalStateException("the answer is not there yet: iterate to the end first"));
  }

  /** Waits for the answer, whatever comes before it. */
  Answer last() {
    forEachRemaining(piece -> {});
    return answer();
  }

  /** Leaves the answer, which the service continues for a while. */
  @Override
  public void close() {
    closed = true;
    responses.ifPresent(Responses::close);
  }

  /** Begins a call or reads from it; pauses when it was lost. */
  private void read() {
    try {
      if (responses.isEmpty()) {
        begin();
      }
      AskEvent received =
          responses
              .get()
              .next()
              .orElseThrow(
                  () ->
                      PalimpsestException.of(
                          Details.of(
                              Status.Code.UNKNOWN, "the service ended the call without an answer"),
                          null));
      connection.reached();
      take(received);
    } catch (StatusRuntimeException error) {
      responses.ifPresent(Responses::close);
      responses = Optional.empty();
      if (!closed) {
        pause(error);
      }
    }
  }

  private void begin() {
    if (answerId.isEmpty()) {
      begin(AnswerServiceGrpc.getAskMethod(), question.orElseThrow());
    } else {
      ResumeAnswerRequest request =
          ResumeAnswerRequest.newBuilder()
              .setSession(session)
              .setAnswer(answerId)
              .setAfterEvent(event)
              .setAfterText(piece)
              .build();
      begin(AnswerServiceGrpc.getResumeAnswerMethod(), request);
    }
  }

  private <Q extends Message> void begin(MethodDescriptor<Q, AskEvent> method, Q request) {
    Responses<AskEvent> begun = connection.responses(method, request, Optional.of(until.left()));
    responses = Optional.of(begun);
    if (closed) {
      begun.close();
    }
  }

  /** Notes what is received, and passes it on unless it was received before. */
  void take(AskEvent received) {
    boolean isNew =
        switch (received.getEventCase()) {
          case READING -> answerId.isEmpty();
          case TRAJECTORY_EVENT -> received.getTrajectoryEvent().getOrdinal() > event;
          case TEXT -> received.getText().getOrdinal() > piece;
          case WAITING, ANSWER -> true;
          default -> false; // Of a newer service.
        };
    if (!isNew) {
      return;
    }
    backoff.restart();
    switch (received.getEventCase()) {
      case READING -> answerId = received.getReading().getAnswer();
      case TRAJECTORY_EVENT -> event = received.getTrajectoryEvent().getOrdinal();
      case TEXT -> {
        piece = received.getText().getOrdinal();
        next = Optional.of(received.getText());
      }
      case ANSWER -> answer = Optional.of(received.getAnswer());
      default -> {}
    }
    listener.accept(received);
  }

  private void pause(StatusRuntimeException error) {
    PalimpsestException known = connection.failure(error);
    Duration pause = backoff.pause(known);
    boolean again = answerId.isEmpty() ? Errors.isUnbegun(known) : Errors.mayResume(known);
    if (!again || !until.isWithin(pause)) {
      throw known;
    }
    Times.sleep(pause);
  }
}
