package palimpsest

import (
	"context"
	"iter"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// State is a memory that is the state of an agent: [Client.OpenAgent]. All goroutines can share it.
type State struct{ *Memory }

// State returns a state memory by its id. Nothing is sent.
func (s *Session) State(id string) *State { return &State{s.Memory(id)} }

// CreateState creates a state memory, for an agent; nil: with the service's settings.
func (s *Session) CreateState(ctx context.Context, id string, spec *pb.StateSpec, existOK bool) (*State, error) {
	if spec == nil {
		spec = &pb.StateSpec{}
	}
	wanted := &pb.Memory{Session: s.id, Id: id, Spec: &pb.Memory_State{State: spec}}
	return s.State(id), s.createMemory(ctx, wanted, existOK, "")
}

// ContextOptions are the options of [State.Context].
type ContextOptions struct {
	// Position reads the context as it was when the log ended there; nil: now.
	Position *int64
	// Forms are those that are wanted; empty: the service's.
	Forms []pb.GetWorkingContextRequest_Form
	Consistency
}

// Context returns the working context: the state vectors in use, and later chunks. Every chunk is in
// it, so that only FullyApplied waits, for compressions that are due.
func (s *State) Context(ctx context.Context, options *ContextOptions) (*pb.WorkingContext, error) {
	given := orZero(options)
	return s.session.connection.states.GetWorkingContext(ctx, &pb.GetWorkingContextRequest{
		Session: s.session.id, Memory: s.id, Position: given.Position, Forms: given.Forms,
		Consistency: given.Consistency.message(),
	})
}

// Vectors yields the state vectors, oldest first, of one level or of all (0).
func (s *State) Vectors(ctx context.Context, level int32, consistency *Consistency) iter.Seq2[*pb.StateVector, error] {
	request := &pb.ListStateVectorsRequest{
		Session: s.session.id, Memory: s.id, Level: level, PageSize: maxPage, Consistency: orZero(consistency).message(),
	}
	return pages(func(token string) ([]*pb.StateVector, string, error) {
		request.PageToken = token
		page, err := s.session.connection.states.ListStateVectors(ctx, request)
		return page.GetVectors(), page.GetNextPageToken(), err
	})
}
