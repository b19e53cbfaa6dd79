/** The common part of clients, sessions and memories: budgets and usage. */

import type { Connection } from "./connection.js";
import { type Budget as BudgetMessage, BudgetPeriod, BudgetSchema, CallPurpose, type CostReport as CostReportMessage, CostReportSchema, ListUsageRequest_Grouping as GroupingNumber, type ListUsageResponse_Line, ListUsageResponse_LineSchema, StorageKind, StorageUsage_SizeSchema, type StorageUsage_Size } from "./gen/palimpsest/v1/billing_service_pb.js";
import { type Usage as UsageMessage, UsageSchema } from "./gen/palimpsest/v1/common_pb.js";
import { create } from "@bufbuild/protobuf";
import { type EnumName, numberOf, plain, type Plain, whole, type With } from "./plain.js";

/** A budget, and how much of it is left. A limit that is undefined does not bound. */
export type Budget = With<BudgetMessage, { period: EnumName<typeof BudgetPeriod> }>;
/** Model calls, summed. Tokens are as providers report them. */
export type Usage = Plain<UsageMessage>;
/** The sums of one line; what lines are not grouped by is empty. `day` is such as "2026-05-01". */
export type UsageLine = With<ListUsageResponse_Line, { purpose: EnumName<typeof CallPurpose> | ""; usage: Usage }>;
/** How much is stored of a kind. */
export type StoredSize = With<StorageUsage_Size, { kind: EnumName<typeof StorageKind> }>;
/** What a session or a memory cost, explained. */
export type CostReport = Plain<CostReportMessage>;
/** What gets a line of its own. */
export type Grouping = Exclude<EnumName<typeof GroupingNumber>, "unknown">;

/** What model calls used. */
export interface UsageReport {
  /** The sum of all lines. */
  total: Usage;
  lines: UsageLine[];
}

/** The limits of a budget: at least one of them. */
export interface BudgetLimits {
  /** Tokens of prompts and replies together, cached ones included. */
  limitTokens?: number | undefined;
  /** Millionths of a US dollar. */
  limitMicroUsd?: number | undefined;
  /** Of the budget that was read: it is replaced only if its limits are unchanged. */
  etag?: string | undefined;
  requestId?: string | undefined;
}

/** From which day to which, in UTC, both included: "2026-05-01". */
export interface Days {
  firstDay?: string | undefined;
  lastDay?: string | undefined;
}

/** The tenant, a session or a memory, and the connection to it. */
export class Resource {
  constructor(
    protected readonly connection: Connection,
    protected readonly place: { session: string; memory: string },
  ) {}

  /**
   * Bounds what all model calls of the tenant, session or memory may cost, in a day (UTC) or in total.
   *
   * Replaces the budget of that period; memories that a budget stopped try again. Throws NotFound, and
   * Aborted (ETAG_MISMATCH) for another `etag`.
   */
  async setBudget(period: "day" | "total", limits: BudgetLimits): Promise<Budget> {
    const { limitTokens, limitMicroUsd, etag = "", requestId = "" } = limits;
    const budget = create(BudgetSchema, { ...this.place, period: numberOf(BudgetPeriod, "period", period), etag });
    const [tokens, usd] = [whole("limitTokens", limitTokens), whole("limitMicroUsd", limitMicroUsd)];
    if (tokens !== undefined) budget.limitTokens = tokens;
    if (usd !== undefined) budget.limitMicroUsd = usd;
    // Repeated with an etag, what was done the first time would be ETAG_MISMATCH.
    const retry = !etag || requestId !== "";
    return plain(BudgetSchema, await this.connection.call(this.connection.billing.setBudget, { budget, requestId }, { retry }));
  }

  /** Deletes a budget; memories that it stopped try again. Throws NotFound, unless `missingOk`. */
  async deleteBudget(period: "day" | "total", options: { missingOk?: boolean; requestId?: string } = {}): Promise<void> {
    const { missingOk = false, requestId = "" } = options;
    const request = { ...this.place, period: numberOf(BudgetPeriod, "period", period), allowMissing: missingOk, requestId };
    await this.connection.call(this.connection.billing.deleteBudget, request, { retry: missingOk || requestId !== "" });
  }

  protected listBudgets(): AsyncGenerator<Budget> {
    const request = { session: this.place.session, pageSize: 1000 };
    return this.connection.all(this.connection.billing.listBudgets, request, (page) => page.budgets.map((one): Budget => plain(BudgetSchema, one)));
  }

  protected async readStorage(): Promise<StoredSize[]> {
    const found = await this.connection.call(this.connection.billing.getStorageUsage, { session: this.place.session });
    return found.sizes.map((one) => plain(StorageUsage_SizeSchema, one));
  }

  protected async readUsage(memory: string, groupBy: readonly Grouping[], days: Days): Promise<UsageReport> {
    const request = {
      session: this.place.session,
      memory,
      groupBy: groupBy.map((one) => numberOf(GroupingNumber, "groupBy", one) as GroupingNumber),
      firstDay: days.firstDay ?? "",
      lastDay: days.lastDay ?? "",
      pageSize: 1000,
    };
    let total = create(UsageSchema);
    const lines: UsageLine[] = [];
    for await (const page of this.connection.pages(this.connection.billing.listUsage, request)) {
      total = page.total ?? total;
      lines.push(...page.lines.map((one): UsageLine => plain(ListUsageResponse_LineSchema, one)));
    }
    return { total: plain(UsageSchema, total), lines };
  }

  protected async readCosts(memory: string, options: Days & { systemTokens?: number }): Promise<CostReport> {
    const { firstDay = "", lastDay = "", systemTokens = 0 } = options;
    const request = { session: this.place.session, memory, firstDay, lastDay, systemTokens };
    return plain(CostReportSchema, await this.connection.call(this.connection.billing.getCostReport, request));
  }
}
