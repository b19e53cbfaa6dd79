package dev.palimpsest.conformance;

import static dev.palimpsest.conformance.Replies.list;
import static dev.palimpsest.conformance.Replies.object;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import dev.palimpsest.Agent;
import dev.palimpsest.AnswerStream;
import dev.palimpsest.AskResult;
import dev.palimpsest.Producer;
import dev.palimpsest.v1.AskRequest;
import dev.palimpsest.v1.Chunk;
import dev.palimpsest.v1.Reader;
import dev.palimpsest.v1.WorkingContext;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Function;

/** Calls of questions, and of the loop of an agent. */
final class AnswerCalls {
  private final Client client;

  AnswerCalls(Client client) {
    this.client = client;
  }

  Map<String, Function<Arguments, JsonElement>> calls() {
    return Map.ofEntries(
        Map.entry("ask", this::ask),
        Map.entry("ask_all", this::askAll),
        Map.entry("stream_ask", this::streamAsk),
        Map.entry("next_piece", this::nextPiece),
        Map.entry("close_stream", this::closeStream),
        Map.entry("resume_answer", this::resumeAnswer),
        Map.entry("cancel_answer", this::cancelAnswer),
        Map.entry("get_answer", this::getAnswer),
        Map.entry("open_agent", this::openAgent),
        Map.entry("record_steps", this::recordSteps),
        Map.entry("get_context", this::getContext),
        Map.entry("close_agent", this::closeAgent));
  }

  private JsonElement ask(Arguments a) {
    return Replies.answer(client.session(a).ask(a.text("query"), request -> ask(a, request)));
  }

  private JsonElement askAll(Arguments a) {
    List<AskResult> found =
        client.session(a).askAll(a.names("queries"), request -> ask(a, request));
    return object(
        "answers",
        list(
            found,
            one ->
                one.error()
                    .map(error -> object("error", Replies.error(error)))
                    .orElseGet(() -> Replies.answer(one.answer()))));
  }

  private JsonElement cancelAnswer(Arguments a) {
    return Replies.answer(client.session(a).cancelAnswer(a.text("answer_id")));
  }

  private JsonElement getAnswer(Arguments a) {
    return Replies.answer(client.session(a).answer(a.text("answer_id")));
  }

  private static void ask(Arguments a, AskRequest.Builder request) {
    a.texts("memory", request::setMemory);
    a.texts(
        "reader", r -> request.setReader(Reader.valueOf("READER_" + r.toUpperCase(Locale.ROOT))));
    if (a.has("after") || a.isSet("fully_applied")) {
      a.consistency(request.getConsistencyBuilder());
    }
    a.ifGiven("response_schema", one -> one.isJsonObject() ? one.toString() : one.getAsString())
        .ifPresent(request::setResponseSchema);
  }

  private JsonElement streamAsk(Arguments a) {
    AnswerStream stream = client.session(a).streamAsk(a.text("query"), request -> ask(a, request));
    client.keep(a, stream);
    return object("answer_id", stream.answerId());
  }

  private JsonElement nextPiece(Arguments a) {
    AnswerStream stream = client.handle(a);
    if (!stream.hasNext()) {
      return object("answer", Replies.answer(stream.answer()));
    }
    var piece = stream.next();
    return object("text", piece.getText(), "restarts", piece.getRestarts());
  }

  private JsonElement closeStream(Arguments a) {
    client.<AnswerStream>handle(a).close();
    return new JsonObject();
  }

  private JsonElement resumeAnswer(Arguments a) {
    int[] after = new int[2];
    a.number("after_event", one -> after[0] = one.intValue());
    a.number("after_text", one -> after[1] = one.intValue());
    try (AnswerStream rest =
        client.session(a).resumeAnswer(a.text("answer_id"), after[0], after[1])) {
      rest.forEachRemaining(piece -> {});
      return Replies.answer(rest.answer());
    }
  }

  private JsonElement openAgent(Arguments a) {
    Agent agent =
        client
            .get()
            .agent(
                a.text("session"),
                options -> {
                  a.texts("memory", options::memory);
                  a.texts("task", task -> options.spec(spec -> spec.setTask(task)));
                  a.number(
                      "period_tokens",
                      one -> options.spec(spec -> spec.setPeriodTokens(one.intValue())));
                  a.seconds("give_up_seconds").ifPresent(options::giveUp);
                  a.seconds("wait_seconds").ifPresent(options::waitFor);
                });
    client.keep(a, agent);
    return object("step", agent.step());
  }

  private JsonElement recordSteps(Arguments a) {
    Agent agent = client.handle(a);
    Producer.Ack last = null;
    for (JsonElement one : a.items("steps")) {
      Chunk step = Arguments.step(new Arguments(one.getAsJsonObject()));
      last = agent.record(step);
    }
    return object("position", last.position(), "read_token", last.readToken());
  }

  private JsonElement getContext(Arguments a) {
    WorkingContext context = client.<Agent>handle(a).context();
    return object(
        "text", context.getText(),
        "head", context.getHead(),
        "vectors", list(context.getVectorsList(), Replies::message),
        "recent", list(context.getRecentList(), Replies::chunk));
  }

  private JsonElement closeAgent(Arguments a) {
    Agent agent = client.handle(a);
    agent.close();
    return object("step", agent.step());
  }
}
