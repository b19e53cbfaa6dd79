package palimpsest

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// AmendmentOptions are the options of [Memory.Amendments].
type AmendmentOptions struct {
	// PathPrefix is the path that they are at, or within.
	PathPrefix string
	// Positions are those of the chunks that made them; zero: any.
	Positions Positions
	Consistency
}

// Amendments yields the changes of the value, oldest first.
func (m *Memory) Amendments(ctx context.Context, options *AmendmentOptions) iter.Seq2[*pb.Amendment, error] {
	given := orZero(options)
	request := &pb.ListAmendmentsRequest{
		Session: m.session.id, Memory: m.id, PathPrefix: given.PathPrefix, PageSize: maxPage, Consistency: given.Consistency.message(),
	}
	if given.Positions != (Positions{}) {
		request.Positions = &pb.PositionRange{First: given.Positions.First, Last: given.Positions.Last}
	}
	return pages(func(token string) ([]*pb.Amendment, string, error) {
		request.PageToken = token
		page, err := m.session.connection.memories.ListAmendments(ctx, request)
		return page.GetAmendments(), page.GetNextPageToken(), err
	})
}

// Rejections yields what models proposed, and what was refused for which reason.
func (m *Memory) Rejections(ctx context.Context, consistency *Consistency) iter.Seq2[*pb.Rejection, error] {
	request := &pb.ListRejectionsRequest{
		Session: m.session.id, Memory: m.id, PageSize: maxPage, Consistency: orZero(consistency).message(),
	}
	return pages(func(token string) ([]*pb.Rejection, string, error) {
		request.PageToken = token
		page, err := m.session.connection.memories.ListRejections(ctx, request)
		return page.GetRejections(), page.GetNextPageToken(), err
	})
}

// Revisions yields the revisions, oldest first.
func (m *Memory) Revisions(ctx context.Context, consistency *Consistency) iter.Seq2[*pb.Revision, error] {
	request := &pb.ListRevisionsRequest{
		Session: m.session.id, Memory: m.id, PageSize: maxPage, Consistency: orZero(consistency).message(),
	}
	return pages(func(token string) ([]*pb.Revision, string, error) {
		request.PageToken = token
		page, err := m.session.connection.memories.ListRevisions(ctx, request)
		return page.GetRevisions(), page.GetNextPageToken(), err
	})
}

// DiffOptions are the options of [Memory.Diff].
type DiffOptions struct {
	// Revision is the one that is compared; nil: the newest.
	Revision *int64
	// OtherMemory and OtherRevision are what it is compared with; empty: this memory, nil: the newest.
	OtherMemory   string
	OtherRevision *int64
	Consistency
}

// Diff yields how the value differs from that of another revision, or of another memory.
func (m *Memory) Diff(ctx context.Context, options *DiffOptions) iter.Seq2[*pb.DiffMemoriesResponse_Difference, error] {
	given := orZero(options)
	request := &pb.DiffMemoriesRequest{
		Session: m.session.id, Memory: m.id, Revision: given.Revision, OtherMemory: given.OtherMemory,
		OtherRevision: given.OtherRevision, Consistency: given.Consistency.message(), PageSize: maxPage,
	}
	return pages(func(token string) ([]*pb.DiffMemoriesResponse_Difference, string, error) {
		request.PageToken = token
		page, err := m.session.connection.memories.DiffMemories(ctx, request)
		return page.GetDifferences(), page.GetNextPageToken(), err
	})
}

// Rollback restores the value of an earlier revision, as a new revision.
func (m *Memory) Rollback(ctx context.Context, revision int64, options *EditOptions) (*pb.Memory, error) {
	given := orZero(options)
	return m.session.connection.memories.RollbackMemory(ctx, &pb.RollbackMemoryRequest{
		Session: m.session.id, Memory: m.id, Revision: revision, ExpectedRevision: given.ExpectedRevision,
		Comment: given.Comment, RequestId: given.RequestID,
	})
}

// Fold writes the amendments into a new base, and reports whether there were any.
func (m *Memory) Fold(ctx context.Context, options *RequestOptions) (*pb.FoldMemoryResponse, error) {
	request := &pb.FoldMemoryRequest{Session: m.session.id, Memory: m.id, RequestId: orZero(options).RequestID}
	return m.session.connection.memories.FoldMemory(ctx, request)
}

// Consolidate requests that the model merges and shortens, once the log is read.
func (m *Memory) Consolidate(ctx context.Context, options *RequestOptions) (*Operation, error) {
	connection := m.session.connection
	request := &pb.ConsolidateMemoryRequest{Session: m.session.id, Memory: m.id, RequestId: orZero(options).RequestID}
	return connection.operation(connection.memories.ConsolidateMemory(ctx, request))
}

// Flush ends the wait for more chunks (Linger), and returns before they are read: a read with its
// ReadToken sees them applied.
func (m *Memory) Flush(ctx context.Context, options *RequestOptions) (*pb.FlushMemoryResponse, error) {
	request := &pb.FlushMemoryRequest{Session: m.session.id, Memory: m.id, RequestId: orZero(options).RequestID}
	return m.session.connection.memories.FlushMemory(ctx, request)
}

// Flush is [Memory.Flush] of all memories of the session.
func (s *Session) Flush(ctx context.Context, options *RequestOptions) (*pb.FlushMemoryResponse, error) {
	return s.Memory("").Flush(ctx, options)
}

// Retry retries a stalled memory where it stopped, and reports whether it was stalled.
func (m *Memory) Retry(ctx context.Context, options *RequestOptions) (bool, error) {
	count, err := m.session.connection.retry(ctx, m.session.id, m.id, orZero(options).RequestID)
	return count > 0, err
}

// RetryStalled retries the stalled memories of a session, or with an empty id all, and returns how many.
func (c *Client) RetryStalled(ctx context.Context, session string, options *RequestOptions) (int, error) {
	return c.connection.retry(ctx, session, "", orZero(options).RequestID)
}

func (c *connection) retry(ctx context.Context, session, memory, requestID string) (int, error) {
	reply, err := c.memories.RetryMemory(ctx, &pb.RetryMemoryRequest{Session: session, Memory: memory, RequestId: requestID})
	return int(reply.GetRetried()), err
}

// UpdateOptions are the options of [Memory.Update].
type UpdateOptions struct {
	// ExpectedRevision is what the newest revision must be, else it is refused
	// (ReasonRevisionConflict); nil: any.
	ExpectedRevision *int64
	// Comment is kept with the revision that a new schema makes.
	Comment string
	// RequestID makes a repeated call do nothing for 24 hours; empty: one is made for the call.
	RequestID string
}

// Update replaces settings of the memory by those of a spec, by their names: "schema_source",
// "json_schema" or "model" of a *pb.PrismSpec, "model" or "navigation_model" of a *pb.TreeSpec, "model"
// of a *pb.StateSpec. A new schema may have more fields. An empty model is the service's default.
//
//	_, err := memory.Update(ctx, &pb.PrismSpec{Model: "openai/gpt-5"}, []string{"model"}, nil)
func (m *Memory) Update(ctx context.Context, spec protoreflect.ProtoMessage, names []string, options *UpdateOptions) (*pb.Memory, error) {
	given := orZero(options)
	wanted, mask, err := m.changed(m.id, spec, names)
	if err != nil {
		return nil, err
	}
	return m.session.connection.memories.UpdateMemory(ctx, &pb.UpdateMemoryRequest{
		Memory: wanted, UpdateMask: mask, ExpectedRevision: given.ExpectedRevision, Comment: given.Comment, RequestId: given.RequestID,
	})
}

// changed returns a memory with fields of a spec, and their paths.
func (m *Memory) changed(id string, spec protoreflect.ProtoMessage, names []string) (*pb.Memory, *fieldmaskpb.FieldMask, error) {
	wanted, mask := &pb.Memory{Session: m.session.id, Id: id}, &fieldmaskpb.FieldMask{}
	kind := ""
	switch one := spec.(type) {
	case nil:
	case *pb.PrismSpec:
		kind, wanted.Spec = "prism", &pb.Memory_Prism{Prism: one}
	case *pb.TreeSpec:
		kind, wanted.Spec = "tree", &pb.Memory_Tree{Tree: one}
	case *pb.StateSpec:
		kind, wanted.Spec = "state", &pb.Memory_State{State: one}
	default:
		return nil, nil, invalid("spec", "give a *PrismSpec, *TreeSpec or *StateSpec, not a %T", spec)
	}
	for _, name := range names {
		mask.Paths = append(mask.Paths, fmt.Sprintf("%s.%s", kind, name))
	}
	slices.Sort(mask.Paths)
	if kind != "" && len(names) == 0 {
		return nil, nil, invalid("names", "name the settings of the spec that are meant")
	}
	return wanted, mask, nil
}

// RebuildOptions are the options of [Memory.Rebuild].
type RebuildOptions struct {
	// Spec has the settings that differ from those of this memory, and Names are their names, as in
	// [Memory.Update]: any field of the spec of the memory's kind. Nil: none differs.
	Spec  protoreflect.ProtoMessage
	Names []string
	// AllowExpiredLog reads what remains of a log whose beginning has expired.
	AllowExpiredLog bool
	// RequestID makes a repeated call do nothing for 24 hours; empty: one is made for the call.
	RequestID string
}

// Rebuild reads the whole log again into a new memory, which begins with the settings of this one; this
// one stays. Waiting for the operation waits until all that is in the log now is read; cancelling it
// deletes the new memory.
func (m *Memory) Rebuild(ctx context.Context, id string, options *RebuildOptions) (*Operation, error) {
	given := orZero(options)
	wanted, mask, err := m.changed(id, given.Spec, given.Names)
	if err != nil {
		return nil, err
	}
	connection := m.session.connection
	return connection.operation(connection.memories.RebuildMemory(ctx, &pb.RebuildMemoryRequest{
		Session: m.session.id, Memory: m.id, NewMemory: wanted, UpdateMask: mask,
		AllowExpiredLog: given.AllowExpiredLog, RequestId: given.RequestID,
	}))
}

// SchemaWish says what a model writes a schema for: [Session.GenerateSchema].
type SchemaWish struct {
	// Domain says what the log is about, ExampleQuery what will be asked.
	Domain, ExampleQuery string
	// Model is one that the operator allows, as provider/name; empty: the service's default.
	Model string
	// RequestID makes a repeated call do nothing for 24 hours; empty: one is made for the call.
	RequestID string
}

// GenerateSchema lets a model write a schema; the operation has it as GetSchemaResult.
func (s *Session) GenerateSchema(ctx context.Context, wish SchemaWish) (*Operation, error) {
	return s.connection.operation(s.connection.memories.GenerateSchema(ctx, &pb.GenerateSchemaRequest{
		Session: s.id, Domain: wish.Domain, ExampleQuery: wish.ExampleQuery, Model: wish.Model, RequestId: wish.RequestID,
	}))
}

// CheckSchema checks a schema, and returns it as models see it.
func (c *Client) CheckSchema(ctx context.Context, schema Schema) (string, error) {
	if schema.err != nil {
		return "", schema.err
	}
	request := &pb.CheckSchemaRequest{Schema: &pb.CheckSchemaRequest_SchemaSource{SchemaSource: schema.source}}
	if schema.source == "" {
		request.Schema = &pb.CheckSchemaRequest_JsonSchema{JsonSchema: schema.json}
	}
	checked, err := c.connection.memories.CheckSchema(ctx, request)
	return checked.GetSchemaSource(), err
}
