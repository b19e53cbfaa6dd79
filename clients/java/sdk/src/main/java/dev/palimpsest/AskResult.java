package dev.palimpsest;

import dev.palimpsest.v1.Answer;
import java.util.Optional;

/** How one of many questions ended; see {@link Session#askAll}. */
public final class AskResult {
  private final Optional<Answer> answer;
  private final Optional<PalimpsestException> error;

  private AskResult(Optional<Answer> answer, Optional<PalimpsestException> error) {
    this.answer = answer;
    this.error = error;
  }

  static AskResult of(Answer answer) {
    return new AskResult(Optional.of(answer), Optional.empty());
  }

  static AskResult of(PalimpsestException error) {
    return new AskResult(Optional.empty(), Optional.of(error));
  }

  /**
   * Returns the answer.
   *
   * @throws PalimpsestException when the question has failed
   */
  public Answer answer() {
    return answer.orElseThrow(error::get);
  }

  /** Returns why the question has failed; empty where there is an answer. */
  public Optional<PalimpsestException> error() {
    return error;
  }
}
