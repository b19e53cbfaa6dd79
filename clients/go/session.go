package palimpsest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// Session is what memories are about: a user, a project, a document, an agent's run. All
// goroutines can share it.
type Session struct {
	connection *connection
	id         string
}

// ID returns the session's id.
func (s *Session) ID() string { return s.id }

func (s *Session) create(ctx context.Context, options SessionOptions) error {
	wanted := &pb.Session{
		Id: s.id, Language: options.Language, Metadata: options.Metadata, Retention: options.Retention,
	}
	if options.DefaultMemory != nil {
		wanted.DefaultMemory = pb.DefaultMemory_DEFAULT_MEMORY_NONE
		if *options.DefaultMemory {
			wanted.DefaultMemory = pb.DefaultMemory_DEFAULT_MEMORY_GENERAL
		}
	}
	request := &pb.CreateSessionRequest{Session: wanted, RequestId: options.RequestID}
	_, err := s.connection.sessions.CreateSession(ctx, request)
	if !options.ExistOK || !errors.Is(err, ReasonSessionExists) {
		return err
	}
	if options.Language == "" {
		return nil
	}
	existing, found := s.Get(ctx)
	if found != nil {
		return found
	}
	if existing.GetLanguage() != options.Language {
		return asError(err).reworded(fmt.Sprintf("session %q is there already, and its language is %q, not %q: leave the language out, or choose another id", s.id, existing.GetLanguage(), options.Language))
	}
	return nil
}

// Get reads the session.
func (s *Session) Get(ctx context.Context) (*pb.Session, error) {
	return s.connection.sessions.GetSession(ctx, &pb.GetSessionRequest{Session: s.id})
}

// SessionUpdate is what [Session.Update] replaces.
type SessionUpdate struct {
	// Metadata replaces all metadata; nil leaves it as it is.
	Metadata map[string]string
	// Retention replaces how long data is kept; nil leaves it as it is.
	Retention *pb.Retention
	// ETag is that of a read: the update is refused (ReasonEtagMismatch) when the session was
	// updated since. Empty: it is not compared.
	ETag string
	// RequestID makes a repeated call do nothing for 24 hours; empty: one is made for the call.
	RequestID string
}

// Update replaces metadata, retention or both.
func (s *Session) Update(ctx context.Context, update SessionUpdate) (*pb.Session, error) {
	mask := &fieldmaskpb.FieldMask{}
	if update.Metadata != nil {
		mask.Paths = append(mask.Paths, "metadata")
	}
	if update.Retention != nil {
		mask.Paths = append(mask.Paths, "retention")
	}
	if len(mask.Paths) == 0 {
		return nil, invalid("update", "give Metadata or Retention: an update without either does nothing")
	}
	return s.connection.sessions.UpdateSession(ctx, &pb.UpdateSessionRequest{
		Session:    &pb.Session{Id: s.id, Metadata: update.Metadata, Retention: update.Retention, Etag: update.ETag},
		UpdateMask: mask,
		RequestId:  update.RequestID,
	})
}

// DeleteOptions are the options of [Session.Delete] and [Memory.Delete].
type DeleteOptions struct {
	// MissingOK succeeds where there is nothing to delete.
	MissingOK bool
	// IncludeImports first deletes the tenant's sessions that were imported from exports of it.
	IncludeImports bool
	// Reason is kept in the record of the erasure, for good: it should have no personal data.
	Reason string
	// RequestID makes a repeated call do nothing for 24 hours; empty: one is made for the call.
	RequestID string
}

// Delete deletes the session with its log, memories, answers and budgets. It cannot be restored.
func (s *Session) Delete(ctx context.Context, options *DeleteOptions) error {
	given := orZero(options)
	_, err := s.connection.sessions.DeleteSession(ctx, &pb.DeleteSessionRequest{
		Session: s.id, AllowMissing: given.MissingOK, IncludeImports: given.IncludeImports,
		Reason: given.Reason, RequestId: given.RequestID,
	})
	return err
}

// Positions are a range of positions in a log; both ends are included.
type Positions struct{ First, Last int64 }

func positionsOf(message *pb.PositionRange) Positions {
	return Positions{message.GetFirst(), message.GetLast()}
}

// Appended is what was stored by an append.
type Appended struct {
	// Positions are where it is.
	Positions Positions
	// ReadToken makes a read see it applied: [Consistency].
	ReadToken string
	// RequestID is that of the append: the same content under the same id is stored once for ever.
	RequestID string
}

// AppendOptions are the options of [Session.Append].
type AppendOptions struct {
	// RequestID, 1 to 128 characters, makes a repeated append store nothing, for ever; empty: one
	// is made for the call, so that a lost reply is no reason to store it twice.
	RequestID string
	// ExpectedHead is the position that the log must end at, else it is refused
	// (ReasonHeadMismatch); nil: any.
	ExpectedHead *int64
}

// Append appends chunks, all or none: 256 at most, of 1 MiB together. They are durable when it
// returns. Any number of processes may append at once. The session must exist: [Session.Remember]
// creates it, and cuts long texts.
func (s *Session) Append(ctx context.Context, content Content, options *AppendOptions) (*Appended, error) {
	given := orZero(options)
	chunks, err := messages(content.chunks(), "item")
	if err != nil {
		return nil, err
	}
	if len(chunks) == 0 {
		return nil, invalid("content", "there is nothing to append")
	}
	request := &pb.AppendRequest{Session: s.id, Chunks: chunks, RequestId: given.RequestID, ExpectedHead: given.ExpectedHead}
	if request.RequestId == "" {
		request.RequestId = newRequestID()
	}
	if size := proto.Size(request); len(chunks) > maxBatchChunks || size > maxSentBytes {
		refused := invalid("content", "%d chunks of %d bytes are too many for one append, which stores all or none: %d chunks of %d bytes are the most. Append them in parts, or by a producer, which does so by itself", len(chunks), size, maxBatchChunks, maxSentBytes)
		refused.reason = ReasonBatchTooLarge
		return nil, refused
	}
	reply, err := s.connection.sessions.Append(ctx, request)
	if known := asError(err); known != nil {
		if isRefusal(known) {
			return nil, known
		}
		return nil, known.reworded(fmt.Sprintf("%v; it may be stored: append the same again with RequestID %q, which stores it once", known, request.RequestId), "request_id", request.RequestId)
	}
	return &Appended{positionsOf(reply.GetPositions()), reply.GetReadToken(), request.RequestId}, nil
}

// Filter says which chunks are meant. Zero values leave a condition out.
type Filter struct {
	// FromPosition and ToPosition are included.
	FromPosition, ToPosition int64
	// Since (included) and Until are about when chunks were committed; OccurredSince and
	// OccurredUntil about when they happened.
	Since, Until, OccurredSince, OccurredUntil time.Time
	// Kinds, Threads and Sources are lists of those that are wanted; empty: all.
	Kinds   []pb.ChunkKind
	Threads []string
	Sources []string
	// ExcludedThreads are left out.
	ExcludedThreads []string
	// Metadata are keys and values that chunks must have.
	Metadata map[string]string
	// MinTrust is the least trusted level that is wanted.
	MinTrust pb.SourceTrust
}

func (f Filter) message() *pb.ChunkFilter {
	message := &pb.ChunkFilter{
		Kinds: f.Kinds, Threads: f.Threads, ExcludedThreads: f.ExcludedThreads, Sources: f.Sources,
		Metadata: f.Metadata, MinTrust: f.MinTrust,
		Created: timesOf(f.Since, f.Until), Occurred: timesOf(f.OccurredSince, f.OccurredUntil),
	}
	if f.FromPosition != 0 || f.ToPosition != 0 {
		message.Positions = &pb.PositionRange{First: f.FromPosition, Last: f.ToPosition}
	}
	return message
}

func timesOf(start, end time.Time) *pb.TimeRange {
	if start.IsZero() && end.IsZero() {
		return nil
	}
	return &pb.TimeRange{Start: timeOf(start), End: timeOf(end)}
}

// Chunks yields the chunks of the log that match, in order of position; nil: all.
func (s *Session) Chunks(ctx context.Context, filter *Filter) iter.Seq2[Chunk, error] {
	request := &pb.ListChunksRequest{Session: s.id, PageSize: maxPage, Filter: orZero(filter).message()}
	return pages(func(token string) ([]Chunk, string, error) {
		request.PageToken = token
		page, err := s.connection.sessions.ListChunks(ctx, request)
		chunks := make([]Chunk, 0, len(page.GetChunks()))
		for _, message := range page.GetChunks() {
			chunks = append(chunks, ChunkOf(message))
		}
		return chunks, page.GetNextPageToken(), err
	})
}

// Consistency says how fresh a read must be. It waits, until the context's deadline. Nil and the
// zero value: it returns at once what is there.
type Consistency struct {
	// After is the read token of an append, a flush or an earlier read, which must be applied.
	After string
	// FullyApplied waits for all that is in the log when the call arrives.
	FullyApplied bool
}

func (c Consistency) message() *pb.ReadConsistency {
	if c == (Consistency{}) {
		return nil
	}
	return &pb.ReadConsistency{AtLeast: c.After, FullyApplied: c.FullyApplied}
}

// SearchOptions are the options of [Session.Search].
type SearchOptions struct {
	// Limit is the number of results at most; 0: 10.
	Limit int32
	// Mode says how to search; by default by words, and by vectors where there are some.
	Mode pb.SearchMode
	// Filter limits the chunks.
	Filter Filter
	// Rerank lets a model order the results, which costs a call.
	Rerank bool
	Consistency
}

// Search finds the chunks that match a query best.
func (s *Session) Search(ctx context.Context, query string, options *SearchOptions) (*pb.SearchChunksResponse, error) {
	given := orZero(options)
	if given.Rerank {
		ctx = context.WithValue(ctx, onceKey{}, true)
	}
	return s.connection.sessions.SearchChunks(ctx, &pb.SearchChunksRequest{
		Session: s.id, Query: query, Limit: given.Limit, Mode: given.Mode, Filter: given.Filter.message(),
		Rerank: given.Rerank, Consistency: given.Consistency.message(),
	})
}
