/** Administration: tenants, their keys, quotas, erasures, sources, and the audit log. */

import { create } from "@bufbuild/protobuf";
import type { Connection } from "./connection.js";
import { AlreadyExists, invalid } from "./errors.js";
import * as pb from "./gen/palimpsest/v1/access_service_pb.js";
import { SourceTrust } from "./gen/palimpsest/v1/chunks_pb.js";
import { Scope as ScopeNumber } from "./gen/palimpsest/v1/rules_pb.js";
import { type EnumName, given, numberOf, plain, type Plain, whole, type With } from "./plain.js";
import { type Retention, timestamp } from "./values.js";

/** A tenant. */
export type TenantInfo = With<pb.Tenant, { retention: Retention | undefined }>;
/** What a tenant may use; 0 does not limit. */
export type QuotaInfo = Required<Plain<pb.Quota>>;
/** What a key allows. None includes another. */
export type Scope = Exclude<EnumName<typeof ScopeNumber>, "unknown">;
/** A key, without its secret. */
export type ApiKeyInfo = With<pb.ApiKey, { scopes: (Scope | "unknown")[]; state: EnumName<typeof pb.ApiKey_State> }>;
/** A deletion for good: ids and counts, no text. */
export type ErasureInfo = With<pb.Erasure, { kind: EnumName<typeof pb.Erasure_Kind> }>;
/** What proves an erasure: `palimpsest erasure verify` checks it. */
export type ErasureReceipt = Plain<pb.ErasureReceipt>;
/** A text that a session keeps out: when it is appended, a tombstone is stored. */
export type KeptOutText = Plain<pb.KeptOutText>;
/** How much a source is trusted. */
export type SourceRule = With<pb.SourceRule, { trust: EnumName<typeof SourceTrust> }>;
/** What a quarantine or a release did to a session. */
export type QuarantineResult = With<pb.QuarantineResult, { trust: EnumName<typeof SourceTrust> }>;
/** A quota that can be set. */
export type QuotaName = Exclude<keyof QuotaInfo, "tenant">;

/** A new key. `key` is the whole key, which cannot be read again. */
export interface CreatedApiKey {
  key: string;
  info: ApiKeyInfo;
}

/** The end of an audit log: kept elsewhere, it shows later that nothing was cut off. */
export interface AuditHead {
  /** The sequence of the newest event; 0 without one. */
  sequence: number;
  digest: Uint8Array;
}

/** The digest before the first event of a log. */
export const NO_DIGEST: Uint8Array = new Uint8Array(32);

/** Something that was administered, edited by hand or deleted. */
export type AuditEvent = Plain<pb.AuditEvent> & {
  /** The event as canonical JSON: what its digest covers, besides the digest before it. */
  readonly canonical: string;
  /**
   * Returns whether it is unchanged, and the next event after the one of that sequence and digest.
   * The first follows 0 and `NO_DIGEST`.
   */
  follows(sequence: number, digest: Uint8Array): Promise<boolean>;
};

function tenantInfo(message: pb.Tenant): TenantInfo {
  return plain(pb.TenantSchema, message);
}

function apiKey(message: pb.ApiKey): ApiKeyInfo {
  return plain(pb.ApiKeySchema, message);
}

function created(message: pb.CreateApiKeyResponse): CreatedApiKey {
  return { key: message.key, info: apiKey(message.apiKey ?? create(pb.ApiKeySchema)) };
}

function erasure(message: pb.Erasure): ErasureInfo {
  return plain(pb.ErasureSchema, message);
}

function sourceRule(message: pb.SourceRule): SourceRule {
  return plain(pb.SourceRuleSchema, message);
}

function quarantine(message: pb.QuarantineResult): QuarantineResult {
  return plain(pb.QuarantineResultSchema, message);
}

function auditEvent(message: pb.AuditEvent): AuditEvent {
  const { tenantUid, sequence, occurredAt, principal, action, session, memory, target, details = {}, digest } = message;
  const microseconds = String(Math.floor((occurredAt?.nanos ?? 0) / 1000)).padStart(6, "0");
  const at = new Date(Number(occurredAt?.seconds ?? 0) * 1000).toISOString().replace(/\d{3}Z$/, `${microseconds}Z`);
  const fields = { tenant_id: tenantUid, sequence: Number(sequence), occurred_at: at, principal, action, session, memory, target, details };
  const canonical = JSON.stringify(sorted(fields));
  const follows = async (before: number, previous: Uint8Array) => {
    const text = new TextEncoder().encode(canonical);
    const bytes = new Uint8Array(previous.length + text.length);
    bytes.set(previous);
    bytes.set(text, previous.length);
    const found = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
    return Number(sequence) === before + 1 && found.length === digest.length && found.every((byte, at) => byte === digest[at]);
  };
  return { ...plain(pb.AuditEventSchema, message), canonical, follows };
}

/** Returns a value of JSON with the keys of its objects in order. */
function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(entries.map(([key, one]) => [key, sorted(one)]));
}

/** Names another tenant, which only administrators of the system tenant may do; default: the client's own. */
export interface OfTenant {
  tenant?: string | undefined;
}

/** What a call is limited to, to be stored once however often it is made. */
export interface Once {
  requestId?: string | undefined;
}

/** What administrators do: `client.access`. It needs a key with the scope "admin". */
export class Access {
  readonly #connection: Connection;

  constructor(connection: Connection) {
    this.#connection = connection;
  }

  /** Creates a tenant; with `existOk` an existing one is returned as it is. */
  async createTenant(id: string, options: { displayName?: string; suspended?: boolean; existOk?: boolean } & Once = {}): Promise<TenantInfo> {
    const { displayName = "", suspended = false, existOk = false, requestId = "" } = options;
    try {
      return tenantInfo(await this.#connection.call(this.#stub.createTenant, { tenant: { id, displayName, suspended }, requestId }));
    } catch (error) {
      if (!existOk || !(error instanceof AlreadyExists) || error.reason !== "TENANT_EXISTS") throw error;
      return this.tenant(id);
    }
  }

  async tenant(id = ""): Promise<TenantInfo> {
    return tenantInfo(await this.#connection.call(this.#stub.getTenant, { tenant: id }));
  }

  /** Yields all tenants, by id. */
  tenants(): AsyncGenerator<TenantInfo> {
    return this.#connection.all(this.#stub.listTenants, { pageSize: 1000 }, (page) => page.tenants.map(tenantInfo));
  }

  /** Changes what is given. Calls of a suspended tenant are refused within 10 seconds. */
  async updateTenant(id: string, changes: { displayName?: string; suspended?: boolean; retention?: Retention } & Once): Promise<TenantInfo> {
    const { requestId = "", displayName, suspended, retention } = changes;
    const paths = Object.entries({ display_name: displayName, suspended, retention }).flatMap(([name, value]) => (value === undefined ? [] : [name]));
    if (paths.length === 0) throw invalid("give displayName, suspended or retention, or several of them");
    const tenant = { id, ...given({ displayName, suspended }), ...(retention && { retention: given(retention) }) };
    return tenantInfo(await this.#connection.call(this.#stub.updateTenant, { tenant, updateMask: { paths }, requestId }));
  }

  /** Deletes a tenant with all that it has; its erasures and its audit log stay. */
  async deleteTenant(id: string, options: { reason?: string } & Once = {}): Promise<ErasureInfo> {
    const { reason = "", requestId = "" } = options;
    // A repeated one would find nothing to delete.
    return erasure(await this.#connection.call(this.#stub.deleteTenant, { tenant: id, reason, requestId }, { retry: requestId !== "" }));
  }

  /** Returns the quotas of a tenant that are in force. */
  async quota({ tenant = "" }: OfTenant = {}): Promise<QuotaInfo> {
    return plain(pb.QuotaSchema, await this.#connection.call(this.#stub.getQuota, { tenant }));
  }

  /** Sets quotas; 0 does not limit, null returns to the service's default. Servers enforce them within 10 seconds. */
  async updateQuota(changes: { [Name in QuotaName]?: number | null }, { tenant = "", requestId = "" }: OfTenant & Once = {}): Promise<QuotaInfo> {
    const names = Object.keys(changes) as QuotaName[];
    if (names.length === 0) throw invalid("give the quotas to change, such as requestsPerSecond");
    const quota = Object.fromEntries(names.map((name) => [name, whole(name, changes[name] ?? undefined)]));
    const paths = names.map((name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`));
    const request = { quota: { tenant, ...given(quota) }, updateMask: { paths }, requestId };
    return plain(pb.QuotaSchema, await this.#connection.call(this.#stub.updateQuota, request));
  }

  /**
   * Creates a key, whose secret cannot be read again.
   *
   * It is not repeated when the connection is lost: list the keys then, and revoke the one that was never
   * used. Throws NotFound, ResourceExhausted.
   */
  async createKey(scopes: readonly Scope[], options: { displayName?: string; sessionPrefix?: string; expiresAt?: Date | string } & OfTenant = {}): Promise<CreatedApiKey> {
    const { tenant = "", displayName = "", sessionPrefix = "", expiresAt } = options;
    const numbers = scopes.map((one) => numberOf(ScopeNumber, "scopes", one) as ScopeNumber);
    const apiKey = { scopes: numbers, displayName, sessionPrefix, ...given({ expiresAt: timestamp("expiresAt", expiresAt) }) };
    return created(await this.#connection.call(this.#stub.createApiKey, { tenant, apiKey }, { retry: false }));
  }

  /** Yields all keys from the oldest; expired and revoked ones as well. */
  keys({ tenant = "" }: OfTenant = {}): AsyncGenerator<ApiKeyInfo> {
    return this.#connection.all(this.#stub.listApiKeys, { tenant, pageSize: 1000 }, (page) => page.apiKeys.map(apiKey));
  }

  /** Creates a key with the scopes and sessions of another, which expires after `overlapSeconds` (24 hours). As `createKey` it is not repeated. */
  async rotateKey(id: string, options: { overlapSeconds?: number; expiresAt?: Date | string } & OfTenant = {}): Promise<CreatedApiKey> {
    const { tenant = "", overlapSeconds, expiresAt } = options;
    const seconds = whole("overlapSeconds", overlapSeconds);
    const request = { tenant, apiKey: id, ...given({ overlap: seconds === undefined ? undefined : { seconds }, expiresAt: timestamp("expiresAt", expiresAt) }) };
    return created(await this.#connection.call(this.#stub.rotateApiKey, request, { retry: false }));
  }

  /** Revokes a key for good; no server accepts it after 10 seconds. */
  async revokeKey(id: string, { tenant = "", requestId = "" }: OfTenant & Once = {}): Promise<ApiKeyInfo> {
    return apiKey(await this.#connection.call(this.#stub.revokeApiKey, { tenant, apiKey: id, requestId }));
  }

  /** Yields what was deleted for good, from the oldest. */
  erasures({ tenant = "" }: OfTenant = {}): AsyncGenerator<ErasureInfo> {
    return this.#connection.all(this.#stub.listErasures, { tenant, pageSize: 1000 }, (page) => page.erasures.map(erasure));
  }

  /** Returns the receipt of an erasure. Throws FailedPrecondition until the last row is removed. */
  async erasureReceipt(id: string, { tenant = "" }: OfTenant = {}): Promise<ErasureReceipt> {
    return plain(pb.ErasureReceiptSchema, await this.#connection.call(this.#stub.getErasureReceipt, { tenant, erasure: id }));
  }

  /** Yields the texts that a session keeps out since they were forgotten. */
  keptOutTexts(session: string): AsyncGenerator<KeptOutText> {
    return this.#connection.all(this.#stub.listKeptOutTexts, { session, pageSize: 1000 }, (page) => page.texts.map((one) => plain(pb.KeptOutTextSchema, one)));
  }

  /** Lets a text in again, from the next append on. */
  async allowText(session: string, id: string, { requestId = "" }: Once = {}): Promise<KeptOutText> {
    return plain(pb.KeptOutTextSchema, await this.#connection.call(this.#stub.allowText, { session, id, requestId }));
  }

  /**
   * Yields what was administered, edited by hand and deleted.
   *
   * `action` is one, or the beginning of several, such as "key.". Without filters, and oldest first, the
   * events are the whole chain: `AuditEvent.follows` checks each.
   */
  auditEvents(options: { action?: string; session?: string; principal?: string; firstTime?: Date | string; lastTime?: Date | string; newestFirst?: boolean } & OfTenant = {}): AsyncGenerator<AuditEvent> {
    const { firstTime, lastTime, ...filter } = options;
    const times = { firstTime: timestamp("firstTime", firstTime), lastTime: timestamp("lastTime", lastTime) };
    return this.#connection.all(this.#stub.listAuditEvents, { ...given(filter), ...given(times), pageSize: 1000 }, (page) => page.events.map(auditEvent));
  }

  /** Returns the end of the audit log. */
  async auditHead({ tenant = "" }: OfTenant = {}): Promise<AuditHead> {
    const { head, headDigest } = await this.#connection.call(this.#stub.listAuditEvents, { tenant, pageSize: 1 });
    return { sequence: Number(head), digest: headDigest };
  }

  /**
   * Sets how much a source is trusted, in a session or in all; null removes the rule.
   *
   * `source` may be the beginning of several and an asterisk: "web:*". Throws FailedPrecondition while it
   * is quarantined.
   */
  async setSourceTrust(source: string, trust: "trusted" | "unverified" | "blocked" | null, { session = "", requestId = "" }: { session?: string } & Once = {}): Promise<SourceRule> {
    const number = numberOf(SourceTrust, "trust", trust ?? undefined) ?? SourceTrust.UNSPECIFIED;
    return sourceRule(await this.#connection.call(this.#stub.setSourceTrust, { session, source, trust: number, requestId }));
  }

  /** Returns how much sources are trusted, in a session and in all others. */
  async sources(session = ""): Promise<SourceRule[]> {
    return (await this.#connection.call(this.#stub.listSources, { session })).sources.map(sourceRule);
  }

  /** Returns the memories to which a quarantine or a release is not applied yet: workers apply it to large ones. */
  async pendingMemories(session: string): Promise<string[]> {
    return (await this.#connection.call(this.#stub.listSources, { session })).pendingMemories;
  }

  /** Blocks a source of a session, and undoes what its memories derived from it. */
  async quarantineSource(session: string, source: string, { requestId = "" }: Once = {}): Promise<QuarantineResult> {
    return quarantine(await this.#connection.call(this.#stub.quarantineSource, { session, source, requestId }));
  }

  /** Restores what a quarantine undid. Throws FailedPrecondition where there is none. */
  async releaseSource(session: string, source: string, { requestId = "" }: Once = {}): Promise<QuarantineResult> {
    return quarantine(await this.#connection.call(this.#stub.releaseSource, { session, source, requestId }));
  }

  get #stub() {
    return this.#connection.administration;
  }
}
