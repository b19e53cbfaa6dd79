package palimpsest

import (
	"context"
	"iter"
	"time"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// Spender is what model calls are paid for: the tenant ([Client.Spender]), a session
// ([Session.Spender]) or a memory ([Memory.Spender]).
type Spender struct {
	connection      *connection
	session, memory string
}

// Spender returns budgets, usage and storage of the tenant.
func (c *Client) Spender() *Spender { return &Spender{connection: c.connection} }

// Spender returns budgets, usage and storage of the session.
func (s *Session) Spender() *Spender { return &Spender{connection: s.connection, session: s.id} }

// Spender returns budgets and usage of the memory.
func (m *Memory) Spender() *Spender { return &Spender{m.session.connection, m.session.id, m.id} }

// BudgetLimits are what a budget allows in its period; at least one is given.
type BudgetLimits struct {
	// Tokens are those of prompts and replies, MicroUSD millionths of a US dollar; nil: no limit.
	Tokens, MicroUSD *int64
	// ETag is that of a read: the budget is refused (ReasonEtagMismatch) when its limits were changed
	// since. Empty: it is not compared.
	ETag string
	// RequestID makes a repeated call do nothing for 24 hours; empty: one is made for the call.
	RequestID string
}

// SetBudget bounds what all model calls may cost in a day (UTC) or in total, and replaces the budget of
// that period. Memories that a budget held try again.
func (s *Spender) SetBudget(ctx context.Context, period pb.BudgetPeriod, limits BudgetLimits) (*pb.Budget, error) {
	return s.connection.billing.SetBudget(ctx, &pb.SetBudgetRequest{
		Budget: &pb.Budget{
			Session: s.session, Memory: s.memory, Period: period, LimitTokens: limits.Tokens,
			LimitMicroUsd: limits.MicroUSD, Etag: limits.ETag,
		},
		RequestId: limits.RequestID,
	})
}

// DeleteBudget deletes a budget; memories that it held try again.
func (s *Spender) DeleteBudget(ctx context.Context, period pb.BudgetPeriod, options *DeleteOptions) error {
	given := orZero(options)
	_, err := s.connection.billing.DeleteBudget(ctx, &pb.DeleteBudgetRequest{
		Session: s.session, Memory: s.memory, Period: period, AllowMissing: given.MissingOK, RequestId: given.RequestID,
	})
	return err
}

// Budgets yields all budgets, and how much of each is spent: of the tenant, or of the session and its
// memories.
func (s *Spender) Budgets(ctx context.Context) iter.Seq2[*pb.Budget, error] {
	request := &pb.ListBudgetsRequest{Session: s.session, PageSize: maxPage}
	return pages(func(token string) ([]*pb.Budget, string, error) {
		request.PageToken = token
		page, err := s.connection.billing.ListBudgets(ctx, request)
		return page.GetBudgets(), page.GetNextPageToken(), err
	})
}

// UsageOptions are the options of [Spender.Usage].
type UsageOptions struct {
	// FirstDay and LastDay are in UTC, both included; zero: from the first, to the last.
	FirstDay, LastDay time.Time
	// GroupBy makes a line for each session, memory, day, or purpose and model; empty: by sessions of the
	// tenant, by purposes of a session or a memory.
	GroupBy []pb.ListUsageRequest_Grouping
}

// Usage is what model calls have used.
type Usage struct {
	Total *pb.Usage
	Lines []*pb.ListUsageResponse_Line
}

// Usage returns what model calls have used.
func (s *Spender) Usage(ctx context.Context, options *UsageOptions) (*Usage, error) {
	given := orZero(options)
	if len(given.GroupBy) == 0 {
		given.GroupBy = []pb.ListUsageRequest_Grouping{pb.ListUsageRequest_GROUPING_SESSION}
		if s.session != "" {
			given.GroupBy[0] = pb.ListUsageRequest_GROUPING_PURPOSE
		}
	}
	request := &pb.ListUsageRequest{
		Session: s.session, Memory: s.memory, FirstDay: dayOf(given.FirstDay), LastDay: dayOf(given.LastDay),
		GroupBy: given.GroupBy, PageSize: maxPage,
	}
	found := &Usage{}
	var err error
	found.Lines, err = Collect(pages(func(token string) ([]*pb.ListUsageResponse_Line, string, error) {
		request.PageToken = token
		page, err := s.connection.billing.ListUsage(ctx, request)
		found.Total = page.GetTotal()
		return page.GetLines(), page.GetNextPageToken(), err
	}))
	if err != nil {
		return nil, err
	}
	return found, nil
}

// CostOptions are the options of [Spender.CostReport].
type CostOptions struct {
	FirstDay, LastDay time.Time
	// SystemTokens are those of an agent's system prompt, which each context of a loop counts.
	SystemTokens int32
}

// CostReport explains the cost of a session or a memory: how predicted and reported caches compare,
// and for one memory also other encodings, or the loop without it.
func (s *Spender) CostReport(ctx context.Context, options *CostOptions) (*pb.CostReport, error) {
	given := orZero(options)
	return s.connection.billing.GetCostReport(ctx, &pb.GetCostReportRequest{
		Session: s.session, Memory: s.memory, FirstDay: dayOf(given.FirstDay), LastDay: dayOf(given.LastDay),
		SystemTokens: given.SystemTokens,
	})
}

// Storage returns how much is stored of the tenant or the session, by kind.
func (s *Spender) Storage(ctx context.Context) ([]*pb.StorageUsage_Size, error) {
	found, err := s.connection.billing.GetStorageUsage(ctx, &pb.GetStorageUsageRequest{Session: s.session})
	return found.GetSizes(), err
}

func dayOf(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.DateOnly)
}
