package palimpsest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// openingTries is how many loops may take over a session at the same moment before one gives up.
const openingTries = 5

// AgentOptions are the options of [Client.OpenAgent].
type AgentOptions struct {
	// Task is the task prompt, the first state vector.
	Task string
	// Memory is the id of the state memory; empty: "state".
	Memory string
	// Spec has further settings of the state memory; Task replaces its own.
	Spec *pb.StateSpec
	// ProducerID names the loop within the session; empty: "agent".
	ProducerID string
	// Wait is how long a context waits for a compression that is due; 0: 30 seconds; negative: not.
	Wait time.Duration
	// GiveUp is how long to try a lost service; 0: a minute.
	GiveUp time.Duration
}

// Agent is what an agent's loop needs: the context before each step, and a place for the step.
//
//	agent, err := client.OpenAgent(ctx, "run-42", &palimpsest.AgentOptions{Task: "Find the red key."})
//	…
//	for !done {
//		known, err := agent.Context(ctx)
//		… // the model decides upon known.GetText(), and the world answers
//		_, err = agent.Record(ctx, palimpsest.Step(thought, action, observation))
//	}
//
// A loop that starts again continues after its durable steps. Of two loops on one session the later
// one continues, and the next step of the other is a [ReasonProducerFenced].
type Agent struct {
	session  *Session
	memory   *Memory
	options  AgentOptions
	one      sync.Mutex
	producer *Producer
	failure  error
	epoch    int64
	state    sync.Mutex
	head     int64
}

// OpenAgent opens the loop of an agent. A missing session or memory is created; an existing memory
// is used if it has the settings that are given.
func (c *Client) OpenAgent(ctx context.Context, session string, options *AgentOptions) (*Agent, error) {
	given := orZero(options)
	given.Memory = cmp.Or(given.Memory, "state")
	given.ProducerID = cmp.Or(given.ProducerID, "agent")
	given.Wait = cmp.Or(given.Wait, 30*time.Second)
	opened, err := c.CreateSession(ctx, session, &SessionOptions{ExistOK: true})
	if err != nil {
		return nil, err
	}
	spec := &pb.StateSpec{Task: given.Task}
	if given.Spec != nil {
		spec = proto.Clone(given.Spec).(*pb.StateSpec)
		spec.Task = cmp.Or(given.Task, spec.Task)
	}
	memory, err := opened.CreateState(ctx, given.Memory, spec, true)
	if err != nil {
		return nil, err
	}
	agent := &Agent{session: opened, memory: memory.Memory, options: given, epoch: time.Now().UnixMicro()}
	if agent.producer, err = agent.open(ctx); err != nil {
		return nil, err
	}
	info, err := opened.Get(ctx)
	if err != nil {
		agent.producer.stop()
		return nil, err
	}
	agent.head = info.GetHead()
	return agent, nil
}

// open returns a producer that fences off those of earlier loops.
func (a *Agent) open(ctx context.Context) (*Producer, error) {
	for tries := openingTries; ; tries-- {
		producer, err := a.reopen(ctx)
		if !errors.Is(err, ReasonProducerFenced) || tries == 1 {
			return producer, err
		}
		// The clock of the earlier loop was ahead of ours.
		epoch, _ := strconv.ParseInt(asError(err).metadata["epoch"], 10, 64)
		a.epoch = max(a.epoch, epoch) + 1
	}
}

func (a *Agent) reopen(ctx context.Context) (*Producer, error) {
	return a.session.OpenProducer(ctx, a.options.ProducerID, &ProducerOptions{Epoch: a.epoch, GiveUp: a.options.GiveUp})
}

// Session returns the session of the loop, Memory its state memory.
func (a *Agent) Session() *Session { return a.session }

// Memory returns the state memory, for questions about the run.
func (a *Agent) Memory() *Memory { return a.memory }

// Step returns the number of the next step, from 1 on. Messages count as steps. What other producers
// append counts from the next context on.
func (a *Agent) Step() int64 {
	a.state.Lock()
	defer a.state.Unlock()
	return a.head + 1
}

func (a *Agent) reached(head int64) {
	a.state.Lock()
	defer a.state.Unlock()
	a.head = max(a.head, head)
}

// Context returns what the model reads before the next step: state vectors, and the steps since, as
// parts, as a text and as messages. It waits for a compression that is due; without it the context
// has older vectors and more recent steps, and Blocked says why. Each step is in it once.
func (a *Agent) Context(ctx context.Context) (*pb.WorkingContext, error) {
	request := &pb.GetWorkingContextRequest{
		Session: a.session.id, Memory: a.memory.id,
		Forms: []pb.GetWorkingContextRequest_Form{
			pb.GetWorkingContextRequest_FORM_PARTS, pb.GetWorkingContextRequest_FORM_TEXT, pb.GetWorkingContextRequest_FORM_MESSAGES,
		},
	}
	if a.options.Wait > 0 {
		request.Consistency = Consistency{FullyApplied: true}.message()
		waiting, cancel := context.WithTimeout(ctx, a.options.Wait)
		found, err := a.session.connection.states.GetWorkingContext(waiting, request)
		cancel()
		if err == nil {
			a.reached(found.GetHead())
			return found, nil
		}
		if ctx.Err() != nil || !isNotMade(asError(err)) {
			return nil, err
		}
		request.Consistency = nil
	}
	found, err := a.session.connection.states.GetWorkingContext(ctx, request)
	a.reached(found.GetHead())
	return found, err
}

// isNotMade reports whether a due compression is not there yet; the next read reports what remains
// of the error.
func isNotMade(err *Error) bool {
	switch err.reason {
	case ReasonNotAppliedInTime, ReasonMemoryStalled, ReasonBudgetExhausted:
		return true
	}
	return err.code == codes.DeadlineExceeded || err.code == codes.Unavailable
}

// Record appends a step, or a message such as the user's. It is durable, and in the next context,
// when this returns. An InvalidArgument has stored nothing, and the next step may follow.
func (a *Agent) Record(ctx context.Context, step Chunk) (*Ack, error) {
	a.one.Lock()
	defer a.one.Unlock()
	if a.producer == nil {
		return nil, &Error{code: codes.FailedPrecondition, message: "this agent is closed", cause: ErrClosed}
	}
	if errors.Is(a.failure, CodeError(codes.InvalidArgument)) {
		// A refusal ends the stream; later steps need another one, of the same epoch.
		a.producer.stop()
		producer, err := a.reopen(ctx)
		if err != nil {
			return nil, a.failed(err)
		}
		a.producer, a.failure = producer, nil
	}
	if _, err := a.producer.Send(ctx, step); err != nil {
		return nil, a.failed(err)
	}
	ack, err := a.producer.Flush(ctx)
	if err != nil {
		return nil, a.failed(err)
	}
	a.reached(ack.Position)
	return ack, nil
}

func (a *Agent) failed(err error) error {
	known := asError(err)
	if known != nil && known.reason == ReasonProducerFenced {
		err = known.reworded(fmt.Sprintf("another loop has taken over session %q as producer %q; this one must end", a.session.id, a.options.ProducerID))
	}
	a.failure = err
	return err
}

// Close ends the loop once all recorded steps are durable.
func (a *Agent) Close(ctx context.Context) error {
	a.one.Lock()
	defer a.one.Unlock()
	producer := a.producer
	a.producer = nil
	if producer == nil {
		return nil
	}
	if a.failure != nil {
		// It was returned for the step.
		producer.stop()
		return nil
	}
	return producer.Close(ctx)
}
