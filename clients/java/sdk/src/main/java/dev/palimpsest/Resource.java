package dev.palimpsest;

import dev.palimpsest.v1.BillingServiceGrpc;
import dev.palimpsest.v1.Budget;
import dev.palimpsest.v1.BudgetPeriod;
import dev.palimpsest.v1.DeleteBudgetRequest;
import dev.palimpsest.v1.GetStorageUsageRequest;
import dev.palimpsest.v1.ListBudgetsRequest;
import dev.palimpsest.v1.ListUsageRequest;
import dev.palimpsest.v1.ListUsageResponse;
import dev.palimpsest.v1.SetBudgetRequest;
import dev.palimpsest.v1.StorageUsage;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.stream.Stream;

/** The common part of clients, sessions and memories: the connection, budgets and usage. */
abstract class Resource {
  static final int PAGE = 1000;

  final Connection connection;

  /** The timeout of calls; empty: that of the client. */
  final Optional<Duration> timeout;

  private final String ofSession;
  private final String ofMemory;

  Resource(Connection connection, String ofSession, String ofMemory, Optional<Duration> timeout) {
    this.connection = connection;
    this.ofSession = ofSession;
    this.ofMemory = ofMemory;
    this.timeout = timeout;
  }

  /**
   * Bounds what all model calls of the tenant, session or memory may cost, a day (UTC) or in total:
   * tokens of prompts and replies, millionths of a US dollar, or both. Replaces the budget of that
   * period, with an etag only if its limits are unchanged; memories that a budget held try again.
   *
   * <pre>{@code
   * alice.setBudget(BudgetPeriod.BUDGET_PERIOD_DAY, budget -> budget.setLimitTokens(100_000));
   * }</pre>
   *
   * @throws PalimpsestException.Aborted for another etag ({@code ETAG_MISMATCH})
   */
  public Budget setBudget(BudgetPeriod period, Consumer<Budget.Builder> limits) {
    Budget.Builder budget = Budget.newBuilder();
    limits.accept(budget);
    budget.setSession(ofSession).setMemory(ofMemory).setPeriod(period);
    SetBudgetRequest request = SetBudgetRequest.newBuilder().setBudget(budget).build();
    return connection.call(BillingServiceGrpc.getSetBudgetMethod(), request, timeout);
  }

  /**
   * Deletes the budget of a period; memories that it held try again.
   *
   * @throws PalimpsestException.NotFound when there is none
   */
  public void deleteBudget(BudgetPeriod period) {
    deleteBudget(period, request -> {});
  }

  /** Deletes the budget of a period; the options say for example that it may be missing. */
  public void deleteBudget(BudgetPeriod period, Consumer<DeleteBudgetRequest.Builder> options) {
    DeleteBudgetRequest.Builder request = DeleteBudgetRequest.newBuilder();
    options.accept(request);
    request.setSession(ofSession).setMemory(ofMemory).setPeriod(period);
    connection.call(BillingServiceGrpc.getDeleteBudgetMethod(), request.build(), timeout);
  }

  Stream<Budget> listBudgets() {
    return connection.all(
        BillingServiceGrpc.getListBudgetsMethod(),
        ListBudgetsRequest.newBuilder().setSession(ofSession).setPageSize(PAGE).build(),
        page -> page.getBudgetsList(),
        timeout);
  }

  List<StorageUsage.Size> readStorage() {
    GetStorageUsageRequest request =
        GetStorageUsageRequest.newBuilder().setSession(ofSession).build();
    return connection
        .call(BillingServiceGrpc.getGetStorageUsageMethod(), request, timeout)
        .getSizesList();
  }

  UsageReport readUsage(Consumer<ListUsageRequest.Builder> options) {
    ListUsageRequest.Builder request = ListUsageRequest.newBuilder().setPageSize(PAGE);
    options.accept(request);
    request.setSession(ofSession);
    List<ListUsageResponse.Line> lines = new ArrayList<>();
    ListUsageResponse page;
    do {
      page = connection.call(BillingServiceGrpc.getListUsageMethod(), request.build(), timeout);
      lines.addAll(page.getLinesList());
      request.setPageToken(page.getNextPageToken());
    } while (!page.getNextPageToken().isEmpty());
    return new UsageReport(page.getTotal(), List.copyOf(lines));
  }
}
