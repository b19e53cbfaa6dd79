package dev.palimpsest.conformance;

import static dev.palimpsest.conformance.Replies.list;
import static dev.palimpsest.conformance.Replies.object;

import com.google.gson.JsonElement;
import com.google.protobuf.Struct;
import com.google.protobuf.Timestamp;
import dev.palimpsest.Access;
import dev.palimpsest.AuditChain;
import dev.palimpsest.v1.AuditEvent;
import dev.palimpsest.v1.CreateApiKeyResponse;
import dev.palimpsest.v1.ListAuditEventsRequest;
import dev.palimpsest.v1.Quota;
import dev.palimpsest.v1.Scope;
import dev.palimpsest.v1.SourceTrust;
import dev.palimpsest.v1.Tenant;
import java.time.Instant;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;

/** Calls of administrators. */
final class AccessCalls {
  private final Client client;

  AccessCalls(Client client) {
    this.client = client;
  }

  Map<String, Function<Arguments, JsonElement>> calls() {
    return Map.ofEntries(
        Map.entry("create_tenant", this::createTenant),
        Map.entry("get_tenant", a -> Replies.message(access(a).tenant())),
        Map.entry(
            "list_tenants",
            a -> object("tenants", list(access(a).tenants().toList(), Replies::message))),
        Map.entry("update_tenant", this::updateTenant),
        Map.entry("delete_tenant", this::deleteTenant),
        Map.entry("get_quota", a -> Replies.message(access(a).quota())),
        Map.entry("update_quota", this::updateQuota),
        Map.entry("create_key", this::createKey),
        Map.entry(
            "list_keys", a -> object("keys", list(access(a).keys().toList(), Replies::message))),
        Map.entry("rotate_key", a -> created(access(a).rotateKey(a.text("id"), options -> {}))),
        Map.entry("revoke_key", a -> Replies.message(access(a).revokeKey(a.text("id")))),
        Map.entry(
            "list_erasures",
            a -> object("erasures", list(access(a).erasures().toList(), Replies::message))),
        Map.entry(
            "get_erasure_receipt", a -> Replies.message(access(a).erasureReceipt(a.text("id")))),
        Map.entry("list_kept_out_texts", this::listKeptOutTexts),
        Map.entry(
            "allow_text",
            a -> Replies.message(access(a).allowText(a.text("session"), a.text("id")))),
        Map.entry("list_audit_events", this::listAuditEvents),
        Map.entry("check_audit_log", this::checkAuditLog),
        Map.entry("set_source_trust", this::setSourceTrust),
        Map.entry(
            "list_sources",
            a ->
                object(
                    "sources",
                    list(access(a).sources(a.text("session", "")).toList(), Replies::message))),
        Map.entry(
            "quarantine_source",
            a -> Replies.message(access(a).quarantineSource(a.text("session"), a.text("source")))),
        Map.entry(
            "release_source",
            a -> Replies.message(access(a).releaseSource(a.text("session"), a.text("source")))));
  }

  private Access access(Arguments a) {
    Access access = client.get().access();
    return a.has("tenant") ? access.ofTenant(a.text("tenant")) : access;
  }

  private JsonElement createTenant(Arguments a) {
    Access access = client.get().access();
    return Replies.message(
        a.isSet("exist_ok")
            ? access.createTenantIfMissing(
                a.text("tenant"), tenant -> a.texts("display_name", tenant::setDisplayName))
            : access.createTenant(
                a.text("tenant"), tenant -> a.texts("display_name", tenant::setDisplayName)));
  }

  private JsonElement updateTenant(Arguments a) {
    Tenant.Builder tenant = Tenant.newBuilder().setId(a.text("tenant"));
    a.texts("display_name", tenant::setDisplayName);
    tenant.setSuspended(a.isSet("suspended"));
    a.ifGiven("retention", Arguments::retention).ifPresent(tenant::setRetention);
    List<String> fields = new ArrayList<>(List.of("display_name", "suspended", "retention"));
    fields.removeIf(one -> !a.has(one));
    return Replies.message(
        client.get().access().updateTenant(tenant, fields.toArray(String[]::new)));
  }

  private JsonElement deleteTenant(Arguments a) {
    return Replies.message(
        client.get().access().deleteTenant(a.text("tenant"), a.text("reason", "")));
  }

  private JsonElement updateQuota(Arguments a) {
    Map<String, JsonElement> changes = a.json().getAsJsonObject("changes").asMap();
    List<String> defaults =
        changes.keySet().stream().filter(one -> changes.get(one).isJsonNull()).toList();
    if (!defaults.isEmpty() && defaults.size() == changes.size()) {
      return Replies.message(access(a).resetQuota(defaults.toArray(String[]::new)));
    }
    Quota found = access(a).updateQuota(quota -> quotas(changes, quota));
    return Replies.message(
        defaults.isEmpty() ? found : access(a).resetQuota(defaults.toArray(String[]::new)));
  }

  private static void quotas(Map<String, JsonElement> changes, Quota.Builder quota) {
    changes.forEach(
        (name, value) -> {
          if (!value.isJsonNull()) {
            quota.setField(Quota.getDescriptor().findFieldByName(name), value.getAsLong());
          }
        });
  }

  private JsonElement createKey(Arguments a) {
    Set<Scope> scopes = new LinkedHashSet<>();
    a.names("scopes").forEach(one -> scopes.add(Scope.valueOf("SCOPE_" + upper(one))));
    return created(
        access(a)
            .createKey(
                scopes,
                key -> {
                  a.texts("display_name", key::setDisplayName);
                  a.texts("session_prefix", key::setSessionPrefix);
                  a.texts("expires_at", one -> key.setExpiresAt(time(one)));
                }));
  }

  private static Timestamp time(String text) {
    return Timestamp.newBuilder().setSeconds(Instant.parse(text).getEpochSecond()).build();
  }

  private static JsonElement created(CreateApiKeyResponse made) {
    return object("key", made.getKey(), "info", Replies.message(made.getApiKey()));
  }

  private JsonElement listKeptOutTexts(Arguments a) {
    return object(
        "texts", list(access(a).keptOutTexts(a.text("session")).toList(), Replies::message));
  }

  private JsonElement listAuditEvents(Arguments a) {
    var events = access(a).auditEvents(request -> select(a, request)).toList();
    return object("events", list(events, AccessCalls::event));
  }

  private static void select(Arguments a, ListAuditEventsRequest.Builder request) {
    a.texts("action", request::setAction);
    a.texts("session", request::setSession);
    a.texts("principal", request::setPrincipal);
    request.setNewestFirst(a.isSet("newest_first"));
  }

  private static JsonElement event(AuditEvent event) {
    var reply = Replies.message(event.toBuilder().setDetails(Struct.getDefaultInstance()).build());
    var details = object();
    event
        .getDetails()
        .getFieldsMap()
        .forEach(
            (name, value) ->
                details.add(
                    name,
                    switch (value.getKindCase()) {
                      case NUMBER_VALUE -> Replies.json(value.getNumberValue());
                      case BOOL_VALUE -> Replies.json(value.getBoolValue());
                      default -> Replies.json(value.getStringValue());
                    }));
    reply.add("details", details);
    return reply;
  }

  private JsonElement checkAuditLog(Arguments a) {
    AuditChain chain = new AuditChain();
    boolean follows = access(a).auditEvents(request -> {}).map(chain::add).allMatch(one -> one);
    boolean isWhole = chain.digest().equals(access(a).auditHead().digest());
    return object("events", chain.sequence(), "intact", follows && isWhole);
  }

  private JsonElement setSourceTrust(Arguments a) {
    String session = a.text("session", "");
    if (!a.has("trust")) {
      return Replies.message(access(a).removeSourceTrust(session, a.text("source")));
    }
    SourceTrust trust = SourceTrust.valueOf("SOURCE_TRUST_" + upper(a.text("trust")));
    return Replies.message(access(a).setSourceTrust(session, a.text("source"), trust));
  }

  private static String upper(String name) {
    return name.toUpperCase(Locale.ROOT);
  }
}
