package main

import (
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	palimpsest "palimpsest.invalid/clients/go"
	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

func or[T comparable](given, other T) T {
	var zero T
	if given == zero {
		return other
	}
	return given
}

func (d *driver) session(a *args) *palimpsest.Session { return d.client.Session(a.Session) }

func (d *driver) keep(a *args, made any) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.handles[a.Handle] = made
}

func kept[T any](d *driver, a *args) T {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.handles[a.Handle].(T)
}

// short returns the name of a value of an enum without its prefix, in lower case.
func short(value protoreflect.Enum) string {
	descriptor := value.Descriptor()
	name := string(descriptor.Values().ByNumber(value.Number()).Name())
	first := string(descriptor.Values().Get(0).Name())
	for _, zero := range []string{"UNSPECIFIED", "KIND_UNSPECIFIED"} {
		if prefix, found := strings.CutSuffix(first, zero); found {
			return strings.ToLower(strings.TrimPrefix(name, prefix))
		}
	}
	return strings.ToLower(name)
}

func listed[T any](field string, items iter.Seq2[T, error], convert func(T) any) (any, error) {
	made := []any{}
	for item, err := range items {
		if err != nil {
			return nil, err
		}
		made = append(made, convert(item))
	}
	return object{field: made}, nil
}

func sessionOf(found *pb.Session, err error) (any, error) {
	return object{
		"id": found.GetId(), "head": found.GetHead(), "metadata": orEmpty(found.GetMetadata()), "language": found.GetLanguage(), "etag": found.GetEtag(),
		"retention": fieldsOf(found.GetRetention()),
	}, err
}

func positions(given palimpsest.Positions) any {
	if given.First == 0 {
		return nil
	}
	return object{"first": given.First, "last": given.Last}
}

func rangeOf(given *pb.PositionRange) any {
	return positions(palimpsest.Positions{First: given.GetFirst(), Last: given.GetLast()})
}

func chunkOf(one palimpsest.Chunk) any {
	made := object{
		"position": one.Position, "thread": one.Thread, "source": one.Source, "metadata": orEmpty(one.Metadata),
		"producer_id": one.ProducerID, "producer_sequence": one.ProducerSequence, "redacted": one.Redacted,
		"trust": nameOf(one.Trust.Descriptor(), one.Trust.Number()),
	}
	if !one.OccurredAt.IsZero() {
		made["occurred_at"] = one.OccurredAt.UTC().Format(time.RFC3339Nano)
	}
	switch {
	case one.Role != "":
		made["message"] = object{"role": one.Role, "text": one.Text}
	case one.Text == "" && !one.Redacted:
		made["agent_step"] = object{"observation": one.Observation, "thought": one.Thought, "action": one.Action}
	default:
		made["text"] = one.Text
	}
	return made
}

func ackOf(ack *palimpsest.Ack, err error) (any, error) {
	if ack == nil {
		return object{"producer_sequence": nil, "position": nil, "read_token": nil}, err
	}
	return object{"producer_sequence": ack.Sequence, "position": ack.Position, "read_token": ack.ReadToken}, err
}

func memoryOf(found *pb.Memory, err error) (object, error) {
	if err != nil {
		return nil, err
	}
	kind := strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", found.GetSpec()), "*palimpsestpb.Memory_"))
	return object{
		"session": found.GetSession(), "id": found.GetId(), "kind": kind, "status": short(found.GetStatus()),
		"revision": found.GetRevision(), "applied_position": found.GetAppliedPosition(),
	}, nil
}

// withValue returns a memory as it was read: of an earlier revision, that one.
func withValue(found *pb.Memory, value any, err error) (any, error) {
	made, err := memoryOf(found, err)
	if err != nil {
		return nil, err
	}
	point := found.GetReadPoint()
	made["value"], made["read_token"] = value, point.GetReadToken()
	made["revision"], made["applied_position"] = point.GetRevision(), point.GetAppliedPosition()
	return made, nil
}

func amendment(one *pb.Amendment) object {
	return object{
		"op": short(one.GetOp()), "path": one.GetPath(), "value": json.RawMessage(or(one.GetValueJson(), "null")),
		"revision": one.GetRevision(), "positions": rangeOf(one.GetPositions()),
	}
}

func amendments(given []*pb.Amendment) []any {
	made := []any{}
	for _, one := range given {
		made = append(made, amendment(one))
	}
	return made
}

func answerOf(found *palimpsest.Answer, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	citations := []any{}
	for _, one := range found.GetCitations() {
		citations = append(citations, object{"position": one.GetPosition(), "excerpt": one.GetExcerpt()})
	}
	return object{
		"id": found.GetId(), "state": short(found.GetState()), "text": found.GetText(), "citations": citations,
		"value": json.RawMessage(or(found.GetValueJson(), "null")),
	}, nil
}
