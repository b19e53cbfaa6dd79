package dev.palimpsest;

import com.google.protobuf.FieldMask;
import com.google.protobuf.Message;
import dev.palimpsest.PalimpsestException.AlreadyExists;
import dev.palimpsest.v1.AccessServiceGrpc;
import dev.palimpsest.v1.AllowTextRequest;
import dev.palimpsest.v1.ApiKey;
import dev.palimpsest.v1.AuditEvent;
import dev.palimpsest.v1.CreateApiKeyRequest;
import dev.palimpsest.v1.CreateApiKeyResponse;
import dev.palimpsest.v1.CreateTenantRequest;
import dev.palimpsest.v1.DeleteTenantRequest;
import dev.palimpsest.v1.Erasure;
import dev.palimpsest.v1.ErasureReceipt;
import dev.palimpsest.v1.GetErasureReceiptRequest;
import dev.palimpsest.v1.GetQuotaRequest;
import dev.palimpsest.v1.GetTenantRequest;
import dev.palimpsest.v1.KeptOutText;
import dev.palimpsest.v1.ListApiKeysRequest;
import dev.palimpsest.v1.ListAuditEventsRequest;
import dev.palimpsest.v1.ListErasuresRequest;
import dev.palimpsest.v1.ListKeptOutTextsRequest;
import dev.palimpsest.v1.ListSourcesRequest;
import dev.palimpsest.v1.ListSourcesResponse;
import dev.palimpsest.v1.ListTenantsRequest;
import dev.palimpsest.v1.QuarantineResult;
import dev.palimpsest.v1.QuarantineSourceRequest;
import dev.palimpsest.v1.Quota;
import dev.palimpsest.v1.ReleaseSourceRequest;
import dev.palimpsest.v1.RevokeApiKeyRequest;
import dev.palimpsest.v1.RotateApiKeyRequest;
import dev.palimpsest.v1.Scope;
import dev.palimpsest.v1.SetSourceTrustRequest;
import dev.palimpsest.v1.SourceRule;
import dev.palimpsest.v1.SourceTrust;
import dev.palimpsest.v1.Tenant;
import dev.palimpsest.v1.UpdateQuotaRequest;
import dev.palimpsest.v1.UpdateTenantRequest;
import io.grpc.MethodDescriptor;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.function.Consumer;
import java.util.stream.Stream;

/**
 * What administrators do, with a key of the scope "admin": tenants, their keys and quotas, what was
 * deleted, how much sources are trusted, and the audit log.
 *
 * <pre>{@code
 * String key = palimpsest.access().createKey(Set.of(Scope.SCOPE_READ)).getKey();
 * }</pre>
 *
 * <p>It is about the client's own tenant. Administrators of the system tenant name another one by
 * {@link #ofTenant}.
 */
public final class Access {
  private static final int PAGE = 1000;

  private final Connection connection;
  private final String tenant;

  Access(Connection connection, String tenant) {
    this.connection = connection;
    this.tenant = tenant;
  }

  /** Returns the same for another tenant, which only the system tenant may administer. */
  public Access ofTenant(String tenant) {
    return new Access(connection, tenant);
  }

  private <Q extends Message, R> R call(MethodDescriptor<Q, R> method, Q request) {
    return connection.call(method, request, Optional.empty());
  }

  /**
   * Creates a tenant; the settings are its display name, and whether it is suspended.
   *
   * @throws AlreadyExists ({@code TENANT_EXISTS})
   */
  public Tenant createTenant(String id, Consumer<Tenant.Builder> settings) {
    Tenant.Builder wanted = Tenant.newBuilder();
    settings.accept(wanted);
    CreateTenantRequest request =
        CreateTenantRequest.newBuilder().setTenant(wanted.setId(id)).build();
    return call(AccessServiceGrpc.getCreateTenantMethod(), request);
  }

  /** Creates a tenant, or returns the one that is there as it is. */
  public Tenant createTenantIfMissing(String id, Consumer<Tenant.Builder> settings) {
    try {
      return createTenant(id, settings);
    } catch (AlreadyExists error) {
      if (!error.reason().equals("TENANT_EXISTS")) {
        throw error;
      }
      return ofTenant(id).tenant();
    }
  }

  /** Returns the tenant. */
  public Tenant tenant() {
    GetTenantRequest request = GetTenantRequest.newBuilder().setTenant(tenant).build();
    return call(AccessServiceGrpc.getGetTenantMethod(), request);
  }

  /** Returns all tenants, by id; pages are read as needed. */
  public Stream<Tenant> tenants() {
    return connection.all(
        AccessServiceGrpc.getListTenantsMethod(),
        ListTenantsRequest.newBuilder().setPageSize(PAGE).build(),
        page -> page.getTenantsList(),
        Optional.empty());
  }

  /** Suspends a tenant, or lets it continue: servers refuse its calls within 10 seconds. */
  public Tenant suspendTenant(String id, boolean suspended) {
    return updateTenant(Tenant.newBuilder().setId(id).setSuspended(suspended), "suspended");
  }

  /** Changes fields of a tenant, by their names in the API: display_name, suspended, retention. */
  public Tenant updateTenant(Tenant.Builder changed, String... fields) {
    UpdateTenantRequest request =
        UpdateTenantRequest.newBuilder()
            .setTenant(changed)
            .setUpdateMask(FieldMask.newBuilder().addAllPaths(List.of(fields)))
            .build();
    return call(AccessServiceGrpc.getUpdateTenantMethod(), request);
  }

  /**
   * Deletes a tenant with all that it has; workers remove the rows. Its erasures and its audit log
   * stay.
   */
  public Erasure deleteTenant(String id, String reason) {
    DeleteTenantRequest request =
        DeleteTenantRequest.newBuilder().setTenant(id).setReason(reason).build();
    return call(AccessServiceGrpc.getDeleteTenantMethod(), request);
  }

  /** Returns the quotas that are in force. */
  public Quota quota() {
    GetQuotaRequest request = GetQuotaRequest.newBuilder().setTenant(tenant).build();
    return call(AccessServiceGrpc.getGetQuotaMethod(), request);
  }

  /** Sets quotas; 0 does not limit. Servers enforce them within 10 seconds. */
  public Quota updateQuota(Consumer<Quota.Builder> changes) {
    Quota.Builder changed = Quota.newBuilder();
    changes.accept(changed);
    List<String> names =
        changed.clearTenant().getAllFields().keySet().stream().map(one -> one.getName()).toList();
    return updateQuota(changed, names);
  }

  /** Returns quotas, by their names in the API, to the defaults of the service. */
  public Quota resetQuota(String... names) {
    return updateQuota(Quota.newBuilder(), List.of(names));
  }

  private Quota updateQuota(Quota.Builder changed, List<String> names) {
    if (names.isEmpty()) {
      throw new IllegalArgumentException(
          "there is nothing to change: set a quota, such as setSessions(100)");
    }
    UpdateQuotaRequest request =
        UpdateQuotaRequest.newBuilder()
            .setQuota(changed.setTenant(tenant))
            .setUpdateMask(FieldMask.newBuilder().addAllPaths(names))
            .build();
    return call(AccessServiceGrpc.getUpdateQuotaMethod(), request);
  }

  /** Creates a key with these scopes; otherwise as the other. */
  public CreateApiKeyResponse createKey(Set<Scope> scopes) {
    return createKey(scopes, key -> {});
  }

  /**
   * Creates a key, whose secret cannot be read again; the settings are a display name, a prefix of
   * the sessions that it is for, and when it expires.
   *
   * <p>The call is not repeated when the connection is lost: list the keys then, and revoke the one
   * that was never used.
   */
  public CreateApiKeyResponse createKey(Set<Scope> scopes, Consumer<ApiKey.Builder> settings) {
    ApiKey.Builder wanted = ApiKey.newBuilder();
    settings.accept(wanted);
    CreateApiKeyRequest request =
        CreateApiKeyRequest.newBuilder()
            .setTenant(tenant)
            .setApiKey(wanted.clearScopes().addAllScopes(scopes))
            .build();
    return call(AccessServiceGrpc.getCreateApiKeyMethod(), request);
  }

  /** Returns all keys from the oldest; expired and revoked ones as well. */
  public Stream<ApiKey> keys() {
    return connection.all(
        AccessServiceGrpc.getListApiKeysMethod(),
        ListApiKeysRequest.newBuilder().setTenant(tenant).setPageSize(PAGE).build(),
        page -> page.getApiKeysList(),
        Optional.empty());
  }

  /**
   * Creates a key with the scopes and sessions of another, which expires after an overlap: that of
   * the options, by default 24 hours. As {@link #createKey(Set)} it is not repeated.
   */
  public CreateApiKeyResponse rotateKey(String key, Consumer<RotateApiKeyRequest.Builder> options) {
    RotateApiKeyRequest.Builder request = RotateApiKeyRequest.newBuilder();
    options.accept(request);
    request.setTenant(tenant).setApiKey(key);
    return call(AccessServiceGrpc.getRotateApiKeyMethod(), request.build());
  }

  /** Revokes a key for good; no server accepts it after 10 seconds. */
  public ApiKey revokeKey(String key) {
    RevokeApiKeyRequest request =
        RevokeApiKeyRequest.newBuilder().setTenant(tenant).setApiKey(key).build();
    return call(AccessServiceGrpc.getRevokeApiKeyMethod(), request);
  }

  /** Returns what was deleted for good, from the oldest; pages are read as needed. */
  public Stream<Erasure> erasures() {
    return connection.all(
        AccessServiceGrpc.getListErasuresMethod(),
        ListErasuresRequest.newBuilder().setTenant(tenant).setPageSize(PAGE).build(),
        page -> page.getErasuresList(),
        Optional.empty());
  }

  /**
   * Returns the receipt of an erasure.
   *
   * @throws PalimpsestException.FailedPrecondition until the last row is removed
   */
  public ErasureReceipt erasureReceipt(String erasure) {
    GetErasureReceiptRequest request =
        GetErasureReceiptRequest.newBuilder().setTenant(tenant).setErasure(erasure).build();
    return call(AccessServiceGrpc.getGetErasureReceiptMethod(), request);
  }

  /** Returns the texts that a session keeps out since they were forgotten. */
  public Stream<KeptOutText> keptOutTexts(String session) {
    return connection.all(
        AccessServiceGrpc.getListKeptOutTextsMethod(),
        ListKeptOutTextsRequest.newBuilder().setSession(session).setPageSize(PAGE).build(),
        page -> page.getTextsList(),
        Optional.empty());
  }

  /** Lets a text in again, from the next append on. */
  public KeptOutText allowText(String session, String text) {
    AllowTextRequest request =
        AllowTextRequest.newBuilder().setSession(session).setId(text).build();
    return call(AccessServiceGrpc.getAllowTextMethod(), request);
  }

  /**
   * Returns what was administered, edited by hand and deleted; the options select actions, a
   * session, a principal or times. Pages are read as needed.
   */
  public Stream<AuditEvent> auditEvents(Consumer<ListAuditEventsRequest.Builder> options) {
    ListAuditEventsRequest.Builder request = ListAuditEventsRequest.newBuilder().setPageSize(PAGE);
    options.accept(request);
    return connection.all(
        AccessServiceGrpc.getListAuditEventsMethod(),
        request.setTenant(tenant).build(),
        page -> page.getEventsList(),
        Optional.empty());
  }

  /** Returns the end of the audit log. */
  public AuditChain.Head auditHead() {
    ListAuditEventsRequest request =
        ListAuditEventsRequest.newBuilder().setTenant(tenant).setPageSize(1).build();
    var page = call(AccessServiceGrpc.getListAuditEventsMethod(), request);
    return new AuditChain.Head(page.getHead(), page.getHeadDigest());
  }

  /**
   * Sets how much a source is trusted, in a session, or in all with an empty id. The source may be
   * the beginning of several and an asterisk: "web:*".
   */
  public SourceRule setSourceTrust(String session, String source, SourceTrust trust) {
    SetSourceTrustRequest request =
        SetSourceTrustRequest.newBuilder()
            .setSession(session)
            .setSource(source)
            .setTrust(trust)
            .build();
    return call(AccessServiceGrpc.getSetSourceTrustMethod(), request);
  }

  /** Removes the rule of a source, of a session or of all. */
  public SourceRule removeSourceTrust(String session, String source) {
    return setSourceTrust(session, source, SourceTrust.SOURCE_TRUST_UNSPECIFIED);
  }

  /** Returns how much sources are trusted, in a session and in all others. */
  public Stream<SourceRule> sources(String session) {
    return connection.all(
        AccessServiceGrpc.getListSourcesMethod(),
        ListSourcesRequest.newBuilder().setSession(session).build(),
        page -> page.getSourcesList(),
        Optional.empty());
  }

  /** Returns the memories to which a quarantine or a release is not applied yet. */
  public List<String> pendingMemories(String session) {
    ListSourcesRequest request = ListSourcesRequest.newBuilder().setSession(session).build();
    ListSourcesResponse found = call(AccessServiceGrpc.getListSourcesMethod(), request);
    return found.getPendingMemoriesList();
  }

  /** Blocks a source of a session, and undoes what its memories derived from it. */
  public QuarantineResult quarantineSource(String session, String source) {
    QuarantineSourceRequest request =
        QuarantineSourceRequest.newBuilder().setSession(session).setSource(source).build();
    return call(AccessServiceGrpc.getQuarantineSourceMethod(), request);
  }

  /** Restores what a quarantine undid. */
  public QuarantineResult releaseSource(String session, String source) {
    ReleaseSourceRequest request =
        ReleaseSourceRequest.newBuilder().setSession(session).setSource(source).build();
    return call(AccessServiceGrpc.getReleaseSourceMethod(), request);
  }
}
