package palimpsest

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// AskOptions are the options of a question.
type AskOptions struct {
	// Memory is the one to ask; empty: the service chooses, or reads the log. [Memory.Ask] sets it.
	Memory string
	// Reader is how it is read; by default that of the memory's kind, else the automatic one.
	Reader pb.Reader
	// Filter limits what is cited.
	Filter Filter
	// ResponseSchema is a JSON Schema of [Answer.Decode]; [SchemaOf] has that of a struct.
	ResponseSchema Schema
	// Options are those of a multiple-choice question.
	Options []string
	// Model is one that the operator allows, as provider/name.
	Model string
	// StreamText sends the text as it is written: [Session.StreamAsk].
	StreamText bool
	// Unattended completes the answer even when no client waits.
	Unattended bool
	// Request has all further settings; those above replace its own.
	Request *pb.AskRequest
	Consistency
}

func (o AskOptions) request(session, query string) (*pb.AskRequest, error) {
	if o.ResponseSchema.err != nil {
		return nil, o.ResponseSchema.err
	}
	if o.ResponseSchema.source != "" {
		return nil, invalid("ResponseSchema", "the schema of an answer is a JSON Schema, or that of a struct")
	}
	request := &pb.AskRequest{}
	if o.Request != nil {
		request = proto.Clone(o.Request).(*pb.AskRequest)
	}
	proto.Merge(request, &pb.AskRequest{
		Session: session, Query: query, Memory: o.Memory, Reader: o.Reader, Options: o.Options, Model: o.Model,
		StreamText: o.StreamText, Unattended: o.Unattended, ResponseSchema: o.ResponseSchema.json,
		Consistency: o.Consistency.message(),
	})
	if filter := o.Filter.message(); proto.Size(filter) > 0 {
		request.Filter = filter
	}
	return request, nil
}

// Answer is a stored answer, with its citations.
type Answer struct{ *pb.Answer }

// String returns the text.
func (a *Answer) String() string { return a.GetText() }

// Decode decodes the value that ResponseSchema asked for, as package encoding/json does.
func (a *Answer) Decode(into any) error {
	if a.GetValueJson() == "" {
		return fmt.Errorf("answer %q has no value: ask with a ResponseSchema", a.GetId())
	}
	return json.Unmarshal([]byte(a.GetValueJson()), into)
}

// Ask asks the session, and returns the answer with its citations. Without a deadline of the context
// it waits for 60 seconds. A late answer is not lost: the error's metadata has its id as "answer", for
// [Session.ResumeAnswer].
func (s *Session) Ask(ctx context.Context, query string, options *AskOptions) (*Answer, error) {
	return lastOf(s.ask(ctx, query, options, false))
}

// Ask asks the memory: [Session.Ask].
func (m *Memory) Ask(ctx context.Context, query string, options *AskOptions) (*Answer, error) {
	return m.session.Ask(ctx, query, m.options(options))
}

// StreamAsk asks, and yields what happens: the text as it is written, what the reader read and did,
// and last the answer.
//
//	for event, err := range session.StreamAsk(ctx, "When is it closed?", nil) {
//		if err != nil {
//			return err
//		}
//		fmt.Print(event.GetText().GetText())
//		if answer := event.GetAnswer(); answer != nil { … }
//	}
//
// After a lost connection it requests the rest, so that each event is yielded once. A piece of text
// that Restarts voids those before it.
func (s *Session) StreamAsk(ctx context.Context, query string, options *AskOptions) iter.Seq2[*pb.AskEvent, error] {
	return s.ask(ctx, query, options, true)
}

// StreamAsk asks the memory: [Session.StreamAsk].
func (m *Memory) StreamAsk(ctx context.Context, query string, options *AskOptions) iter.Seq2[*pb.AskEvent, error] {
	return m.session.StreamAsk(ctx, query, m.options(options))
}

func (m *Memory) options(options *AskOptions) *AskOptions {
	given := orZero(options)
	given.Memory = m.id
	return &given
}

func (s *Session) ask(ctx context.Context, query string, options *AskOptions, text bool) iter.Seq2[*pb.AskEvent, error] {
	return func(yield func(*pb.AskEvent, error) bool) {
		request, err := orZero(options).request(s.id, query)
		if err != nil {
			yield(nil, err)
			return
		}
		request.StreamText = request.StreamText || text
		newListening(s).follow(ctx, request, yield)
	}
}

// ResumeOptions say what has been received of an answer.
type ResumeOptions struct {
	// AfterEvent and AfterText are the ordinals of the last event and the last piece of text.
	AfterEvent, AfterText int32
}

// ResumeAnswer waits for an answer, which continues from its last model call where it was abandoned.
func (s *Session) ResumeAnswer(ctx context.Context, id string, options *ResumeOptions) (*Answer, error) {
	return lastOf(s.StreamAnswer(ctx, id, options))
}

// StreamAnswer is [Session.ResumeAnswer] with what happens, as [Session.StreamAsk] yields it.
func (s *Session) StreamAnswer(ctx context.Context, id string, options *ResumeOptions) iter.Seq2[*pb.AskEvent, error] {
	return func(yield func(*pb.AskEvent, error) bool) {
		given := orZero(options)
		one := newListening(s)
		one.answer, one.event, one.piece = id, given.AfterEvent, given.AfterText
		one.follow(ctx, nil, yield)
	}
}

// Answer reads a stored answer.
func (s *Session) Answer(ctx context.Context, id string) (*Answer, error) {
	found, err := s.connection.answers.GetAnswer(ctx, &pb.GetAnswerRequest{Session: s.id, Answer: id})
	if err != nil {
		return nil, err
	}
	return &Answer{found}, nil
}

// CancelAnswer ends the work on an answer, if it has not ended, and returns it.
func (s *Session) CancelAnswer(ctx context.Context, id string) (*Answer, error) {
	found, err := s.connection.answers.CancelAnswer(ctx, &pb.CancelAnswerRequest{Session: s.id, Answer: id})
	if err != nil {
		return nil, err
	}
	return &Answer{found}, nil
}

func lastOf(events iter.Seq2[*pb.AskEvent, error]) (*Answer, error) {
	for event, err := range events {
		if err != nil {
			return nil, err
		}
		if answer := event.GetAnswer(); answer != nil {
			return &Answer{answer}, nil
		}
	}
	return nil, &Error{code: codes.Internal, message: "the service ended the call without an answer"}
}

// listening follows an answer across lost connections until it has ended or the time is up.
type listening struct {
	session *Session
	pauses  *backoff
	// What was received.
	answer       string
	event, piece int32
}

func newListening(session *Session) *listening {
	return &listening{session: session, pauses: callBackoff()}
}

// receiver is a stream of events: of a question, or of the rest of an answer.
type receiver interface{ Recv() (*pb.AskEvent, error) }

// follow yields the events of a question, or without one those of the rest of an answer.
func (l *listening) follow(ctx context.Context, request *pb.AskRequest, yield func(*pb.AskEvent, error) bool) {
	connection := l.session.connection
	ctx, cancel := connection.withDeadline(ctx, longTimeout)
	defer cancel()
	until, _ := ctx.Deadline()
	for {
		err := l.once(ctx, request, yield)
		if err == nil {
			return
		}
		known := connection.reach.failure(ctx, err)
		// What was not begun is asked again, and what was begun is resumed. In between nothing says
		// whether it is stored: a second question would cost a second time.
		again := isUnbegun(known)
		if l.answer != "" {
			again = mayResume(known)
		}
		pause := l.pauses.pause(known)
		if !again || time.Now().Add(pause).After(until) || sleep(ctx, pause) != nil {
			yield(nil, known)
			return
		}
	}
}

// once yields the new events of one call; nil: the answer has come, or the program leaves.
func (l *listening) once(ctx context.Context, request *pb.AskRequest, yield func(*pb.AskEvent, error) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := l.open(ctx, request)
	if err != nil {
		return err
	}
	for {
		event, err := events.Recv()
		if isEnd(err) {
			// A server ends it with an answer or a reason.
			err = &Error{code: codes.Unavailable, message: "the service ended the call without an answer"}
		}
		if err != nil {
			return err
		}
		if !l.isNew(event) {
			continue
		}
		l.pauses.restart()
		if !yield(event, nil) || event.GetAnswer() != nil {
			return nil
		}
	}
}

func (l *listening) open(ctx context.Context, request *pb.AskRequest) (receiver, error) {
	if l.answer == "" {
		return l.session.connection.answers.Ask(ctx, request)
	}
	return l.session.connection.answers.ResumeAnswer(ctx, &pb.ResumeAnswerRequest{
		Session: l.session.id, Answer: l.answer, AfterEvent: l.event, AfterText: l.piece,
	})
}

// isNew remembers an event; false for one that is known, or of a newer service.
func (l *listening) isNew(event *pb.AskEvent) bool {
	switch one := event.GetEvent().(type) {
	case *pb.AskEvent_Waiting_, *pb.AskEvent_Answer:
		return true
	case *pb.AskEvent_Reading_:
		isFirst := l.answer == ""
		l.answer = one.Reading.GetAnswer()
		return isFirst
	case *pb.AskEvent_TrajectoryEvent:
		isNew := one.TrajectoryEvent.GetOrdinal() > l.event
		l.event = max(l.event, one.TrajectoryEvent.GetOrdinal())
		return isNew
	case *pb.AskEvent_Text_:
		isNew := one.Text.GetOrdinal() > l.piece
		l.piece = max(l.piece, one.Text.GetOrdinal())
		return isNew
	}
	return false
}
