package dev.palimpsest;

import dev.palimpsest.PalimpsestException.Details;
import dev.palimpsest.Times.Until;
import dev.palimpsest.v1.AnswerServiceGrpc;
import dev.palimpsest.v1.AskEvent;
import dev.palimpsest.v1.AskManyRequest;
import dev.palimpsest.v1.AskRequest;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;

/** The questions of one call, and how far each of them is. */
final class ManyQuestions {
  /** Questions of one call; more are asked in several, one after the other. */
  static final int MOST = 32;

  private final Connection connection;
  private final List<AskRequest> questions;
  private final Until until;

  /** What is received of each question, and continues it where the call of all is lost. */
  private final List<AnswerStream> answers = new ArrayList<>();

  private final List<Optional<AskResult>> results = new ArrayList<>();

  ManyQuestions(Connection connection, List<AskRequest> questions, Duration timeout) {
    this.connection = connection;
    this.questions = questions;
    this.until = Until.after(timeout);
    for (AskRequest one : questions) {
      answers.add(AnswerStream.asked(connection, one, timeout));
      results.add(Optional.empty());
    }
  }

  /** Returns how each of them ended. Throws what ends them all. */
  List<AskResult> ask() {
    Optional<PalimpsestException> lost = Optional.empty();
    AskManyRequest request = AskManyRequest.newBuilder().addAllQuestions(questions).build();
    try (Responses<AskEvent> responses =
        connection.responses(
            AnswerServiceGrpc.getAskManyMethod(), request, Optional.of(until.left()))) {
      for (var next = responses.next(); next.isPresent(); next = responses.next()) {
        connection.reached();
        receive(next.get());
      }
    } catch (StatusRuntimeException error) {
      lost = Optional.of(connection.failure(error));
      boolean isKnown = results.stream().anyMatch(Optional::isPresent);
      if (!isKnown && answers.stream().noneMatch(AnswerStream::isNamed)) {
        // Refused as a whole, or it is unknown whether it was accepted.
        throw lost.get();
      }
    }
    PalimpsestException unanswered =
        lost.orElseGet(
            () ->
                PalimpsestException.of(
                    Details.of(Status.Code.UNKNOWN, "the service ended the call without an answer"),
                    null));
    // The service works on all of them at once: they can be followed one after the other.
    return IntStream.range(0, questions.size())
        .mapToObj(number -> results.get(number).orElseGet(() -> resumed(number, unanswered)))
        .toList();
  }

  private void receive(AskEvent event) {
    int number = event.getIndex();
    if (event.hasError()) {
      results.set(number, Optional.of(AskResult.of(Errors.of(event.getError()))));
      return;
    }
    answers.get(number).take(event);
    if (event.hasAnswer()) {
      results.set(number, Optional.of(AskResult.of(event.getAnswer())));
    }
  }

  /** Follows one answer by itself, where the call of all was lost. */
  private AskResult resumed(int number, PalimpsestException unanswered) {
    if (!answers.get(number).isNamed()) {
      return AskResult.of(unanswered);
    }
    try (AnswerStream stream = answers.get(number)) {
      return AskResult.of(stream.last());
    } catch (PalimpsestException error) {
      // It is of this question; the others continue.
      return AskResult.of(error);
    }
  }
}
