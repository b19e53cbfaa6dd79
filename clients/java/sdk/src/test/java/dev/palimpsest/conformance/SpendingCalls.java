package dev.palimpsest.conformance;

import static dev.palimpsest.conformance.Replies.list;
import static dev.palimpsest.conformance.Replies.object;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import dev.palimpsest.ForgetOptions;
import dev.palimpsest.Operation;
import dev.palimpsest.Tree;
import dev.palimpsest.UsageReport;
import dev.palimpsest.v1.Budget;
import dev.palimpsest.v1.BudgetPeriod;
import dev.palimpsest.v1.ListUsageRequest;
import dev.palimpsest.v1.Memory;
import dev.palimpsest.v1.ReadConsistency;
import dev.palimpsest.v1.TreeSpec;
import java.nio.file.Path;
import java.util.Locale;
import java.util.Map;
import java.util.function.Consumer;
import java.util.function.Function;

/** Calls that forget, move, pay for and summarize sessions. */
final class SpendingCalls {
  private final Client client;

  SpendingCalls(Client client) {
    this.client = client;
  }

  Map<String, Function<Arguments, JsonElement>> calls() {
    return Map.ofEntries(
        Map.entry("forget", this::forget),
        Map.entry("wait_operation", this::waitOperation),
        Map.entry("export_session", this::exportSession),
        Map.entry("import_session", this::importSession),
        Map.entry("set_budget", this::setBudget),
        Map.entry("list_budgets", this::listBudgets),
        Map.entry("delete_budget", this::deleteBudget),
        Map.entry("list_usage", this::listUsage),
        Map.entry("create_tree", this::createTree),
        Map.entry("get_tree", this::getTree),
        Map.entry("get_node", a -> Replies.message(tree(a).node(a.text("node")))),
        Map.entry("list_nodes", this::listNodes),
        Map.entry("get_node_text", this::getNodeText),
        Map.entry("seal_tree", a -> object("operation", tree(a).seal().id())));
  }

  private JsonElement forget(Arguments a) {
    var done = client.session(a).forget(what -> forget(a, what));
    return object(
        "chunks", done.getChunks(),
        "positions", list(done.getPositionsList(), Replies::positions),
        "kept_out", done.getKeptOut(),
        "operation", done.hasOperation() ? done.getOperation().getId() : null);
  }

  private static void forget(Arguments a, ForgetOptions what) {
    for (JsonElement one : a.items("positions")) {
      JsonObject range = one.getAsJsonObject();
      what.positions(range.get("first").getAsLong(), range.get("last").getAsLong());
    }
    a.texts("thread", what::thread);
    a.texts("source", what::source);
    a.texts("text", what::text);
    a.texts("reason", what::reason);
    a.texts("request_id", what::requestId);
    a.ifGiven("keep_out", JsonElement::getAsBoolean).ifPresent(what::keepOut);
    when(a, "case_sensitive", what::caseSensitive);
    when(a, "dry_run", what::dryRun);
    when(a, "include_imports", what::includeImports);
  }

  private static void when(Arguments a, String name, Runnable set) {
    if (a.isSet(name)) {
      set.run();
    }
  }

  private JsonElement waitOperation(Arguments a) {
    Operation operation = client.get().operation(a.text("operation"));
    return Replies.message(a.seconds("timeout").map(operation::await).orElseGet(operation::await));
  }

  private JsonElement exportSession(Arguments a) {
    client.session(a).export(Path.of(a.text("path")));
    return new JsonObject();
  }

  private JsonElement importSession(Arguments a) {
    var session =
        client
            .get()
            .importSession(
                Path.of(a.text("path")),
                opening -> {
                  a.texts("session", opening::setSession);
                  opening.setRestoreDeleted(a.isSet("restore_deleted"));
                },
                progress -> {});
    return Replies.message(session.info());
  }

  private static BudgetPeriod period(Arguments a) {
    return BudgetPeriod.valueOf("BUDGET_PERIOD_" + a.text("period").toUpperCase(Locale.ROOT));
  }

  private JsonElement setBudget(Arguments a) {
    Consumer<Budget.Builder> limits =
        budget -> {
          a.number("limit_tokens", budget::setLimitTokens);
          a.number("limit_micro_usd", budget::setLimitMicroUsd);
          a.texts("etag", budget::setEtag);
        };
    if (a.has("memory")) {
      return Replies.message(client.memory(a).setBudget(period(a), limits));
    }
    return Replies.message(
        a.has("session")
            ? client.session(a).setBudget(period(a), limits)
            : client.get().setBudget(period(a), limits));
  }

  private JsonElement listBudgets(Arguments a) {
    var budgets = a.has("session") ? client.session(a).budgets() : client.get().budgets();
    return object("budgets", list(budgets.toList(), Replies::message));
  }

  private JsonElement deleteBudget(Arguments a) {
    boolean missing = a.isSet("missing_ok");
    if (a.has("memory")) {
      client.memory(a).deleteBudget(period(a), request -> request.setAllowMissing(missing));
    } else if (a.has("session")) {
      client.session(a).deleteBudget(period(a), request -> request.setAllowMissing(missing));
    } else {
      client.get().deleteBudget(period(a), request -> request.setAllowMissing(missing));
    }
    return new JsonObject();
  }

  private JsonElement listUsage(Arguments a) {
    Consumer<ListUsageRequest.Builder> options =
        request -> {
          a.texts("memory", request::setMemory);
          for (String one : a.names("group_by")) {
            request.addGroupBy(
                ListUsageRequest.Grouping.valueOf("GROUPING_" + one.toUpperCase(Locale.ROOT)));
          }
        };
    UsageReport found;
    if (a.has("session")) {
      boolean isWhole = !a.has("memory") && !a.has("group_by");
      found = isWhole ? client.session(a).usage() : client.session(a).usage(options);
    } else {
      found = a.has("group_by") ? client.get().usage(options) : client.get().usage();
    }
    return object("total", found.total(), "lines", list(found.lines(), Replies::message));
  }

  private Tree tree(Arguments a) {
    return client.session(a).tree(a.text("memory"));
  }

  private JsonElement createTree(Arguments a) {
    TreeSpec.Builder spec = TreeSpec.newBuilder();
    a.number("segment_tokens", one -> spec.setSegmentTokens(one.intValue()));
    a.number("max_children", one -> spec.setMaxChildren(one.intValue()));
    a.number("summary_tokens", one -> spec.setSummaryTokens(one.intValue()));
    a.texts("model", spec::setModel);
    Memory.Builder wanted = Memory.newBuilder().setId(a.text("memory")).setTree(spec);
    return Replies.memory(
        a.isSet("exist_ok")
            ? client.session(a).createIfMissing(wanted)
            : client.session(a).create(wanted));
  }

  private JsonElement getTree(Arguments a) {
    var found =
        tree(a)
            .outline(
                request -> {
                  ReadConsistency.Builder consistency = ReadConsistency.newBuilder();
                  a.consistency(consistency);
                  request.setConsistency(consistency);
                });
    JsonObject reply = Replies.message(found);
    reply.add("info", Replies.memory(found.getMemory()));
    return reply;
  }

  private JsonElement listNodes(Arguments a) {
    var nodes =
        a.has("parent")
            ? tree(a).children(a.text("parent"))
            : tree(a).level(a.json().get("level").getAsInt());
    return object("nodes", list(nodes.toList(), Replies::message));
  }

  private JsonElement getNodeText(Arguments a) {
    return object("parts", list(tree(a).text(a.text("node")).toList(), Replies::message));
  }
}
