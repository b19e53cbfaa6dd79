package dev.palimpsest.conformance;

import static dev.palimpsest.conformance.Replies.list;
import static dev.palimpsest.conformance.Replies.object;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import dev.palimpsest.Edits;
import dev.palimpsest.Schemas;
import dev.palimpsest.Watch;
import dev.palimpsest.v1.CreateMemoryRequest;
import dev.palimpsest.v1.Edit;
import dev.palimpsest.v1.GetMemoryRequest;
import dev.palimpsest.v1.GetProvenanceResponse;
import dev.palimpsest.v1.MemoryServiceGrpc;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/** Calls of memories. */
final class MemoryCalls {
  private final Client client;

  MemoryCalls(Client client) {
    this.client = client;
  }

  Map<String, Function<Arguments, JsonElement>> calls() {
    return Map.ofEntries(
        Map.entry("create_memory", this::createMemory),
        Map.entry("get_memory", this::getMemory),
        Map.entry("list_memories", this::listMemories),
        Map.entry("delete_memory", this::deleteMemory),
        Map.entry("edit_memory", this::editMemory),
        Map.entry("wait_until_applied", this::waitUntilApplied),
        Map.entry("get_provenance", this::getProvenance),
        Map.entry("watch_memory", this::watchMemory),
        Map.entry("next_revision", a -> Replies.revision(client.<Watch>handle(a).next())),
        Map.entry("close_watch", this::closeWatch));
  }

  private JsonElement createMemory(Arguments a) {
    CreateMemoryRequest.Builder request = CreateMemoryRequest.newBuilder();
    request.getMemoryBuilder().setSession(a.text("session")).setId(a.text("memory"));
    var spec = request.getMemoryBuilder().getPrismBuilder();
    a.texts("task", spec::setTask);
    a.texts("schema_source", spec::setSchemaSource);
    a.ifGiven("json_schema", one -> one.isJsonObject() ? one.toString() : one.getAsString())
        .ifPresent(spec::setJsonSchema);
    a.texts("request_id", request::setRequestId);
    if (a.has("type")) {
      spec.setJsonSchema(Schemas.jsonSchemaOf(Profile.class));
    }
    return Replies.memory(
        a.isSet("exist_ok")
            ? client.session(a).createIfMissing(request.getMemoryBuilder())
            : client.get().call(MemoryServiceGrpc.getCreateMemoryMethod(), request.build()));
  }

  private JsonElement getMemory(Arguments a) {
    return Replies.state(client.memory(a).get(request -> read(a, request)));
  }

  private static void read(Arguments a, GetMemoryRequest.Builder request) {
    a.number("revision", request::setRevision);
    a.number("position", request::setPosition);
    if (a.has("after") || a.isSet("fully_applied")) {
      a.consistency(request.getConsistencyBuilder());
    }
  }

  private JsonElement listMemories(Arguments a) {
    return object("memories", list(client.session(a).memories().toList(), Replies::memory));
  }

  private JsonElement deleteMemory(Arguments a) {
    client.memory(a).delete(request -> request.setAllowMissing(a.isSet("missing_ok")));
    return new JsonObject();
  }

  private JsonElement editMemory(Arguments a) {
    List<Edit> edits =
        a.items("edits").stream().map(one -> edit(new Arguments(one.getAsJsonObject()))).toList();
    var done =
        client
            .memory(a)
            .edit(
                edits,
                request -> {
                  a.number("expected_revision", request::setExpectedRevision);
                  a.texts("comment", request::setComment);
                  a.texts("request_id", request::setRequestId);
                });
    return object(
        "revision", done.getMemory().getRevision(),
        "amendments", list(done.getAmendmentsList(), Replies::amendment));
  }

  private static Edit edit(Arguments a) {
    String path = a.text("path");
    Object value =
        a.ifGiven("value", one -> Schemas.read(one.toString(), Object.class)).orElse(null);
    return switch (a.text("op")) {
      case "add" -> Edits.add(path, value);
      case "update" -> Edits.update(path, value);
      case "remove" -> Edits.remove(path);
      default -> Edits.put(path, value);
    };
  }

  private JsonElement waitUntilApplied(Arguments a) {
    return Replies.state(client.memory(a).waitUntilApplied(a.text("after")));
  }

  private JsonElement getProvenance(Arguments a) {
    GetProvenanceResponse found = client.memory(a).provenance(a.text("path"));
    return object(
        "path", found.getPath(),
        "exists", found.hasValueJson(),
        "value", found.hasValueJson() ? JsonParser.parseString(found.getValueJson()) : null,
        "entries", list(found.getEntriesList(), MemoryCalls::entry));
  }

  private static JsonElement entry(GetProvenanceResponse.Entry entry) {
    var amendment = entry.getAmendment();
    return object(
        "revision", amendment.getRevision(),
        "op", Replies.lower(amendment.getOp(), "AMENDMENT_OP_"),
        "positions", amendment.hasPositions() ? Replies.positions(amendment.getPositions()) : null,
        "in_effect", entry.getInEffect(),
        "chunks", list(entry.getChunksList(), Replies::message));
  }

  private JsonElement watchMemory(Arguments a) {
    Watch watch =
        client
            .memory(a)
            .watch(
                a.seconds("give_up_seconds").orElse(Duration.ofMinutes(1)),
                request -> {
                  a.number("after_revision", request::setAfterRevision);
                  a.texts("resume_token", request::setResumeToken);
                });
    client.keep(a, watch);
    return new JsonObject();
  }

  private JsonElement closeWatch(Arguments a) {
    Watch watch = client.handle(a);
    watch.close();
    return object("resume_token", watch.resumeToken());
  }
}
