/** A session's answers: asking, following, listing, rating. */

import { type Answer, answerOf, AnswerStream, type Asked, type AskOptions, askMany, lastOf, Listening, MANY_QUESTIONS, question } from "./answers.js";
import { ASK_SECONDS, CALL_SECONDS } from "./connection.js";
import { Rating_Verdict, TrainingExampleSchema, TrajectoryEventSchema } from "./gen/palimpsest/v1/answer_service_pb.js";
import { OperationState } from "./gen/palimpsest/v1/common_pb.js";
import { SessionLog } from "./log.js";
import type { State } from "./operation.js";
import { numberOf, plain } from "./plain.js";
import type { TrainingExample, TrajectoryEvent } from "./trajectories.js";

/** The part of `Session` that is about its answers. */
export class SessionAnswers extends SessionLog {
  /** Asks the session; returns the answer with its citations. */
  async ask(query: string, options: AskOptions = {}): Promise<Answer> {
    return lastOf(this.listening(options.timeout).ask(question(this.id, query, options, false)));
  }

  /** Asks; iterate over the text as it is written, then read `answer`. */
  streamAsk(query: string, options: AskOptions = {}): AnswerStream {
    const leaving = new AbortController();
    const listening = this.listening(options.timeout, leaving.signal);
    return new AnswerStream(listening.ask(question(this.id, query, options, true)), leaving);
  }

  /** Waits for an answer; an abandoned one continues from its last model call. */
  async resumeAnswer(answerId: string, options: { afterEvent?: number; afterText?: number; timeout?: number } = {}): Promise<Answer> {
    const { afterEvent = 0, afterText = 0, timeout } = options;
    return lastOf(this.listening(timeout).resume(answerId, afterEvent, afterText));
  }

  /** Returns a stored answer. */
  async answer(answerId: string): Promise<Answer> {
    return answerOf(await this.connection.call(this.connection.answers.getAnswer, { session: this.id, answer: answerId }));
  }

  /** Cancels an answer that is not done. */
  async cancelAnswer(answerId: string): Promise<Answer> {
    return answerOf(await this.connection.call(this.connection.answers.cancelAnswer, { session: this.id, answer: answerId }));
  }

  /**
   * Asks many questions, 32 at once; returns their answers in the same order.
   *
   * 32 are stored together, or none of them when one is invalid. A question that fails has its error in
   * place of the answer, and the others continue. `timeout` is that of 32.
   */
  async askAll(queries: readonly string[], options: AskOptions = {}): Promise<Asked[]> {
    const seconds = this.connection.seconds(options.timeout, ASK_SECONDS);
    const ended: Asked[] = [];
    for (let start = 0; start < queries.length; start += MANY_QUESTIONS) {
      const questions = queries.slice(start, start + MANY_QUESTIONS).map((one) => question(this.id, one, options, false));
      ended.push(...(await askMany(this.connection, this.id, questions, seconds)));
    }
    return ended;
  }

  /** Yields the stored answers that match, newest first. */
  answers(options: { memory?: string; state?: Exclude<State, "unknown"> } = {}): AsyncGenerator<Answer> {
    const state = numberOf(OperationState, "state", options.state) ?? OperationState.UNSPECIFIED;
    const request = { session: this.id, memory: options.memory ?? "", state, pageSize: 1000 };
    return this.connection.all(this.connection.answers.listAnswers, request, (page) => page.answers.map(answerOf));
  }

  /** Deletes an answer; its usage stays. Throws NotFound, unless `missingOk`. */
  async deleteAnswer(answerId: string, options: { missingOk?: boolean; requestId?: string } = {}): Promise<void> {
    const { missingOk = false, requestId = crypto.randomUUID() } = options;
    await this.connection.call(this.connection.answers.deleteAnswer, { session: this.id, answer: answerId, allowMissing: missingOk, requestId });
  }

  /** Rates an answer that is done; the last rating counts. `expected` is what would have been right. */
  async rate(answerId: string, rating: { good: boolean; comment?: string; expected?: string; requestId?: string }): Promise<Answer> {
    const { good, comment = "", expected = "", requestId = "" } = rating;
    const request = { session: this.id, answer: answerId, rating: { verdict: verdict(good), comment, expected }, requestId };
    return answerOf(await this.connection.call(this.connection.answers.rateAnswer, request));
  }

  /** Yields what the reader of an answer did, in order. */
  trajectory(answerId: string): AsyncGenerator<TrajectoryEvent> {
    const request = { session: this.id, answer: answerId, pageSize: 1000 };
    return this.connection.all(this.connection.answers.listTrajectoryEvents, request, (page) => page.events.map((one): TrajectoryEvent => plain(TrajectoryEventSchema, one)));
  }

  /** Yields the moves of readers that found an answer, for training: of browsings of the log, or of navigations of a memory. */
  async *exportTrajectories(options: { memory?: string; answerIds?: string[]; good?: boolean; timeout?: number } = {}): AsyncGenerator<TrainingExample> {
    const { memory = "", answerIds = [], good, timeout } = options;
    const request = { session: this.id, memory, answers: answerIds, verdict: verdict(good) };
    const seconds = this.connection.seconds(timeout, CALL_SECONDS);
    for await (const one of this.connection.responses(this.connection.answers.exportTrajectories, request, seconds)) yield plain(TrainingExampleSchema, one);
  }

  protected listening(timeout: number | undefined, signal?: AbortSignal): Listening {
    return new Listening(this.connection, this.id, this.connection.seconds(timeout, ASK_SECONDS), signal);
  }
}

function verdict(good: boolean | undefined): Rating_Verdict {
  return good === undefined ? Rating_Verdict.UNSPECIFIED : good ? Rating_Verdict.GOOD : Rating_Verdict.BAD;
}
