package palimpsest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// Memory is a view of a session's log, by its id: structured, a tree or a state. All goroutines can
// share it. [TypedMemory] is one whose value is a struct.
type Memory struct {
	session *Session
	id      string
}

// ID returns the memory's id.
func (m *Memory) ID() string { return m.id }

// Session returns the session that it is a view of.
func (m *Memory) Session() *Session { return m.session }

// Memory returns a memory of any kind by its id. Nothing is sent.
func (s *Session) Memory(id string) *Memory { return &Memory{s, id} }

// MemoryOptions are the settings of a new structured memory. Zero values mean the service's.
type MemoryOptions struct {
	// ExistOK uses a memory that exists already, if it has the settings that are given.
	ExistOK bool
	// Task says what the memory is for, in a sentence or more.
	Task string
	// Question is the question that it serves.
	Question string
	// FinalTask says how answers are written: their form, length or language.
	FinalTask string
	// Model is one that the operator allows, as provider/name.
	Model string
	// Linger is how long a step waits for more chunks; nil: for messages only, 10 seconds.
	Linger *time.Duration
	// ChunkTokens is how much a step reads, MemoryTokens how large the memory may become.
	ChunkTokens, MemoryTokens int32
	// Spec has all further settings; those above replace its own.
	Spec *pb.PrismSpec
	// RequestID makes a repeated call do nothing for 24 hours; empty: one is made for the call.
	RequestID string
}

func (o MemoryOptions) spec(schema Schema) *pb.PrismSpec {
	spec := &pb.PrismSpec{}
	if o.Spec != nil {
		spec = proto.Clone(o.Spec).(*pb.PrismSpec)
	}
	switch {
	case schema.source != "":
		spec.Schema = &pb.PrismSpec_SchemaSource{SchemaSource: schema.source}
	default:
		spec.Schema = &pb.PrismSpec_JsonSchema{JsonSchema: schema.json}
	}
	spec.Task = cmp.Or(o.Task, spec.Task)
	spec.Question = cmp.Or(o.Question, spec.Question)
	spec.FinalTask = cmp.Or(o.FinalTask, spec.FinalTask)
	spec.Model = cmp.Or(o.Model, spec.Model)
	spec.ChunkTokens = cmp.Or(o.ChunkTokens, spec.ChunkTokens)
	spec.MemoryTokens = cmp.Or(o.MemoryTokens, spec.MemoryTokens)
	if o.Linger != nil {
		spec.Linger = durationpb.New(*o.Linger)
	}
	return spec
}

// CreateMemory creates a structured memory, whose schema is that of a type ([SchemaOf]), class
// source ([SchemaSource]) or a JSON Schema ([JSONSchema]). It reads the log from position 1 in the
// background, however late it is created. The function [CreateMemory] creates a typed one.
func (s *Session) CreateMemory(ctx context.Context, id string, schema Schema, options *MemoryOptions) (*Memory, error) {
	given := orZero(options)
	if schema.err != nil {
		return nil, schema.err
	}
	wanted := &pb.Memory{Session: s.id, Id: id, Spec: &pb.Memory_Prism{Prism: given.spec(schema)}}
	return s.Memory(id), s.createMemory(ctx, wanted, given.ExistOK, given.RequestID)
}

// createMemory creates a memory, or with existOK accepts one that has the settings that are given.
func (s *Session) createMemory(ctx context.Context, wanted *pb.Memory, existOK bool, requestID string) error {
	_, err := s.connection.memories.CreateMemory(ctx, &pb.CreateMemoryRequest{Memory: wanted, RequestId: requestID})
	if !existOK || !errors.Is(err, ReasonMemoryExists) {
		return err
	}
	for existing, listed := range s.Memories(ctx) {
		if listed != nil {
			return listed
		}
		if existing.GetId() != wanted.GetId() {
			continue
		}
		if err := s.storedSchema(ctx, wanted.GetPrism()); err != nil {
			return err
		}
		others := settingsThatDiffer(wanted, existing)
		if len(others) == 0 {
			return nil
		}
		return asError(err).reworded(fmt.Sprintf("memory %q exists already, and %s. Use it as it is (Session.Memory), choose another id, or build one with these settings from the whole log (RebuildMemory)", wanted.GetId(), strings.Join(others, "; ")))
	}
	// It has been deleted meanwhile: the program can try again.
	return err
}

// storedSchema replaces a schema by what the service keeps of it, so that it can be compared.
func (s *Session) storedSchema(ctx context.Context, spec *pb.PrismSpec) error {
	if spec == nil {
		return nil
	}
	request := &pb.CheckSchemaRequest{Schema: &pb.CheckSchemaRequest_SchemaSource{SchemaSource: spec.GetSchemaSource()}}
	if text := spec.GetJsonSchema(); text != "" {
		request.Schema = &pb.CheckSchemaRequest_JsonSchema{JsonSchema: text}
	}
	checked, err := s.connection.memories.CheckSchema(ctx, request)
	if err == nil {
		spec.Schema = &pb.PrismSpec_SchemaSource{SchemaSource: checked.GetSchemaSource()}
	}
	return err
}

// settingsThatDiffer returns in words how a memory differs from the wanted one, in what was given.
func settingsThatDiffer(wanted, existing *pb.Memory) []string {
	asked, kind := specOf(wanted)
	found, other := specOf(existing)
	if kind != other {
		return []string{fmt.Sprintf("is a %s memory, not a %s memory", other, kind)}
	}
	var differing []string
	asked.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if value.Equal(found.Get(field)) {
			return true
		}
		said := fmt.Sprintf("%s is %v, not %v", field.Name(), found.Get(field), value)
		if field.Name() == "schema_source" {
			said = "its schema is another one"
		}
		differing = append(differing, said)
		return true
	})
	slices.Sort(differing)
	return differing
}

func specOf(memory *pb.Memory) (protoreflect.Message, protoreflect.Name) {
	message := memory.ProtoReflect()
	field := message.WhichOneof(message.Descriptor().Oneofs().ByName("spec"))
	if field == nil {
		return (&pb.PrismSpec{}).ProtoReflect(), ""
	}
	return message.Get(field).Message(), field.Name()
}

// Memories yields the session's memories, by id, without their values.
func (s *Session) Memories(ctx context.Context) iter.Seq2[*pb.Memory, error] {
	request := &pb.ListMemoriesRequest{Session: s.id}
	return pages(func(token string) ([]*pb.Memory, string, error) {
		request.PageToken = token
		page, err := s.connection.memories.ListMemories(ctx, request)
		return page.GetMemories(), page.GetNextPageToken(), err
	})
}

// ReadOptions are the options of a read of a memory.
type ReadOptions struct {
	// Revision reads that revision, Position the newest one without a later chunk; nil: the newest.
	Revision, Position *int64
	Consistency
}

// Get reads the memory: now, as it was, or once it is fresh enough. Its value is in ValueJson;
// [TypedMemory.Value] and [Memory.Decode] decode it.
func (m *Memory) Get(ctx context.Context, options *ReadOptions) (*pb.Memory, error) {
	given := orZero(options)
	return m.session.connection.memories.GetMemory(ctx, &pb.GetMemoryRequest{
		Session: m.session.id, Memory: m.id, Revision: given.Revision, Position: given.Position,
		Consistency: given.Consistency.message(),
	})
}

// Decode reads the memory as [Memory.Get] does, and its value into what a pointer points at, as
// package encoding/json does.
func (m *Memory) Decode(ctx context.Context, into any, options *ReadOptions) (*pb.Memory, error) {
	found, err := m.Get(ctx, options)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(found.GetValueJson()), into); err != nil {
		return found, fmt.Errorf("the value of memory %q does not fit %T: %w", m.id, into, err)
	}
	return found, nil
}

// WaitUntilApplied waits until the memory has applied what a read token stands for; empty: all that
// is in the log now. It returns the memory.
func (m *Memory) WaitUntilApplied(ctx context.Context, readToken string) (*pb.Memory, error) {
	return m.Get(ctx, &ReadOptions{Consistency: Consistency{After: readToken, FullyApplied: readToken == ""}})
}

// Delete deletes the memory with its history. The log and the answers stay.
func (m *Memory) Delete(ctx context.Context, options *DeleteOptions) error {
	given := orZero(options)
	_, err := m.session.connection.memories.DeleteMemory(ctx, &pb.DeleteMemoryRequest{
		Session: m.session.id, Memory: m.id, AllowMissing: given.MissingOK, Reason: given.Reason, RequestId: given.RequestID,
	})
	return err
}

// Edit is one change by hand. Its path is $['topics']['museum'][0], $.'topics'.'museum'[0] or
// /topics/museum/0.
type Edit struct {
	op    pb.AmendmentOp
	path  string
	value any
}

// Put sets the value at a path, whether there was one or not.
func Put(path string, value any) Edit {
	return Edit{pb.AmendmentOp_AMENDMENT_OP_UNSPECIFIED, path, value}
}

// Add does as [Put]; the amendment is marked as corrected when the path had a value.
func Add(path string, value any) Edit { return Edit{pb.AmendmentOp_AMENDMENT_OP_ADD, path, value} }

// Update does as [Put]; the amendment is marked as corrected when the path had no value.
func Update(path string, value any) Edit {
	return Edit{pb.AmendmentOp_AMENDMENT_OP_UPDATE, path, value}
}

// Remove removes the value at a path.
func Remove(path string) Edit { return Edit{op: pb.AmendmentOp_AMENDMENT_OP_REMOVE, path: path} }

// EditOptions are the options of [Memory.Edit].
type EditOptions struct {
	// ExpectedRevision is what the newest revision must be, else it is refused
	// (ReasonRevisionConflict); nil: any.
	ExpectedRevision *int64
	// Comment is kept with the revision.
	Comment string
	// RequestID makes a repeated call do nothing for 24 hours; empty: one is made for the call.
	RequestID string
}

// Edit makes all edits, in order, as one revision; or none.
func (m *Memory) Edit(ctx context.Context, edits []Edit, options *EditOptions) (*pb.EditMemoryResponse, error) {
	given := orZero(options)
	request := &pb.EditMemoryRequest{
		Session: m.session.id, Memory: m.id, ExpectedRevision: given.ExpectedRevision,
		Comment: given.Comment, RequestId: given.RequestID,
	}
	for at, edit := range edits {
		message := &pb.Edit{Op: edit.op, Path: edit.path}
		if edit.op != pb.AmendmentOp_AMENDMENT_OP_REMOVE {
			value, err := json.Marshal(edit.value)
			if err != nil {
				return nil, invalid(fmt.Sprintf("edit %d", at+1), "its value is no JSON: %v", err)
			}
			message.ValueJson = string(value)
		}
		request.Edits = append(request.Edits, message)
	}
	return m.session.connection.memories.EditMemory(ctx, request)
}

// Provenance is the value at a path, and what made it.
type Provenance struct {
	*pb.GetProvenanceResponse
	rest iter.Seq2[*pb.GetProvenanceResponse_Entry, error]
}

// All yields the amendments that made the value, newest first, each with the chunks that its step
// read. Pages are read as they are needed.
func (p *Provenance) All() iter.Seq2[*pb.GetProvenanceResponse_Entry, error] { return p.rest }

// Provenance explains the value at a path, down to the chunks, at a revision; nil: at the newest.
func (m *Memory) Provenance(ctx context.Context, path string, revision *int64) (*Provenance, error) {
	request := &pb.GetProvenanceRequest{
		Session: m.session.id, Memory: m.id, Path: path, Revision: revision,
	}
	first, err := m.session.connection.memories.GetProvenance(ctx, request)
	if err != nil {
		return nil, err
	}
	rest := pages(func(token string) ([]*pb.GetProvenanceResponse_Entry, string, error) {
		if token == "" {
			return first.GetEntries(), first.GetNextPageToken(), nil
		}
		request.PageToken = token
		page, err := m.session.connection.memories.GetProvenance(ctx, request)
		return page.GetEntries(), page.GetNextPageToken(), err
	})
	return &Provenance{first, rest}, nil
}
