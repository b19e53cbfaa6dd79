package palimpsest

import (
	"context"
	"iter"
	"strconv"

	"google.golang.org/grpc/codes"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// Chunk returns the chunk at a position, such as one that a citation names.
func (s *Session) Chunk(ctx context.Context, position int64) (Chunk, error) {
	at := max(position, 0)
	page, err := s.connection.sessions.ListChunks(ctx, &pb.ListChunksRequest{
		Session: s.id, PageSize: 1, Filter: Filter{FromPosition: at, ToPosition: at}.message(),
	})
	if err != nil {
		return Chunk{}, err
	}
	if position < 1 || len(page.GetChunks()) == 0 {
		missing := invalid("position", "session %q has no chunk at position %d: its log ends at %d", s.id, position, page.GetHead())
		missing.code, missing.reason, missing.fields = codes.OutOfRange, "", nil
		return Chunk{}, missing.reworded(missing.message, "position", strconv.FormatInt(position, 10), "head", strconv.FormatInt(page.GetHead(), 10))
	}
	return ChunkOf(page.GetChunks()[0]), nil
}

// SearchMemoriesOptions are the options of [Session.SearchMemories].
type SearchMemoriesOptions struct {
	// Limit is the number of results at most; 0: 10.
	Limit int32
	// Mode says how to search; by default by words, and by vectors where there are some.
	Mode pb.SearchMode
	// Memories are those that are searched; empty: all. PathPrefix is the path that entries are within.
	Memories   []string
	PathPrefix string
	// Filter limits the chunks that entries come from.
	Filter Filter
	Consistency
}

// SearchMemories finds the entries of memories that match a query best.
func (s *Session) SearchMemories(ctx context.Context, query string, options *SearchMemoriesOptions) (*pb.SearchMemoriesResponse, error) {
	given := orZero(options)
	return s.connection.sessions.SearchMemories(ctx, &pb.SearchMemoriesRequest{
		Session: s.id, Query: query, Limit: given.Limit, Mode: given.Mode, Consistency: given.Consistency.message(),
		Filter: &pb.MemoryEntryFilter{Memories: given.Memories, PathPrefix: given.PathPrefix, Chunks: given.Filter.message()},
	})
}

// SearchIndex returns how much of the log has words and vectors in the index.
func (s *Session) SearchIndex(ctx context.Context) (*pb.SearchIndex, error) {
	return s.connection.sessions.GetSearchIndex(ctx, &pb.GetSearchIndexRequest{Session: s.id})
}

// Memories yields the memories of all sessions, of one status if given, in no order.
func (c *Client) Memories(ctx context.Context, status pb.Memory_Status) iter.Seq2[*pb.Memory, error] {
	request := &pb.ListMemoriesRequest{Status: status, PageSize: maxPage}
	return pages(func(token string) ([]*pb.Memory, string, error) {
		request.PageToken = token
		page, err := c.connection.memories.ListMemories(ctx, request)
		return page.GetMemories(), page.GetNextPageToken(), err
	})
}

// NavigationStatistics returns how navigations of the memory went, a tree.
func (m *Memory) NavigationStatistics(ctx context.Context) (*pb.NavigationStatistics, error) {
	return m.session.connection.answers.GetNavigationStatistics(ctx, &pb.GetNavigationStatisticsRequest{Session: m.session.id, Memory: m.id})
}

// TrajectoryOptions are the options of [Session.ExportTrajectories].
type TrajectoryOptions struct {
	// Answers are ids; empty: of all answers. Verdict is that of their ratings; by default any.
	Answers []string
	Verdict pb.Rating_Verdict
}

// ExportTrajectories yields the moves of browsings of the log that found an answer, for training. A
// stream that was lost is an error: export it again.
func (s *Session) ExportTrajectories(ctx context.Context, options *TrajectoryOptions) iter.Seq2[*pb.TrainingExample, error] {
	return s.Memory("").ExportTrajectories(ctx, options)
}

// ExportTrajectories is [Session.ExportTrajectories] of navigations of the memory.
func (m *Memory) ExportTrajectories(ctx context.Context, options *TrajectoryOptions) iter.Seq2[*pb.TrainingExample, error] {
	given := orZero(options)
	return func(yield func(*pb.TrainingExample, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		examples, err := m.session.connection.answers.ExportTrajectories(ctx, &pb.ExportTrajectoriesRequest{
			Session: m.session.id, Memory: m.id, Answers: given.Answers, Verdict: given.Verdict,
		})
		for err == nil {
			var one *pb.TrainingExample
			if one, err = examples.Recv(); err == nil && !yield(one, nil) {
				return
			}
		}
		if !isEnd(err) {
			yield(nil, err)
		}
	}
}
