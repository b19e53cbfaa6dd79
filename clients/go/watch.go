package palimpsest

import (
	"cmp"
	"context"
	"iter"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// WatchOptions are the options of [Memory.Watch].
type WatchOptions struct {
	// AfterRevision begins after this revision, 0 with the first; nil: after the newest.
	AfterRevision *int64
	// ResumeToken continues after an event of an earlier watch, also in another process.
	ResumeToken string
	// GiveUp is how long to try a lost service; 0: a minute.
	GiveUp time.Duration
}

// Watch is the revisions of a memory as they are committed. It is for one goroutine; Close may be
// called from any.
type Watch struct {
	memory  *Memory
	request *pb.WatchMemoryRequest
	giveUp  time.Duration
	pauses  *backoff
	// Of all calls of the watch, and of the newest.
	ctx    context.Context
	cancel context.CancelCauseFunc
	stream pb.MemoryService_WatchMemoryClient
	drop   context.CancelFunc
	// When the service was lost; zero while it is there.
	lostAt time.Time
	token  sync.Mutex
	resume string
}

// Watch begins a watch: when it returns, every further revision will be seen. ctx ends it, as Close
// does.
//
//	watch, err := memory.Watch(ctx, nil)
//	if err != nil {
//		return err
//	}
//	defer watch.Close()
//	for event, err := range watch.Events() {
//		if err != nil {
//			return err
//		}
//		fmt.Println(event.GetRevision().GetRevision(), event.GetAmendments())
//	}
func (m *Memory) Watch(ctx context.Context, options *WatchOptions) (*Watch, error) {
	given := orZero(options)
	if given.AfterRevision != nil && given.ResumeToken != "" {
		return nil, invalid("options", "give AfterRevision or ResumeToken, not both")
	}
	watch := &Watch{
		memory: m, giveUp: cmp.Or(given.GiveUp, giveUpTimeout), pauses: streamBackoff(), resume: given.ResumeToken,
		request: &pb.WatchMemoryRequest{Session: m.session.id, Memory: m.id},
	}
	if given.AfterRevision != nil {
		watch.request.Start = &pb.WatchMemoryRequest_AfterRevision{AfterRevision: *given.AfterRevision}
	}
	watch.ctx, watch.cancel = context.WithCancelCause(ctx)
	for watch.stream == nil {
		if err := watch.tried(watch.open()); err != nil {
			watch.Close()
			return nil, err
		}
	}
	return watch, nil
}

// ResumeToken continues after the last event, in another process as well: [WatchOptions].
func (w *Watch) ResumeToken() string {
	w.token.Lock()
	defer w.token.Unlock()
	return w.resume
}

// Close ends the watch, and a wait for a revision, whose error is then [ErrClosed].
func (w *Watch) Close() { w.cancel(ErrClosed) }

// Next waits for the next revision. After a lost connection it continues after the last one.
func (w *Watch) Next() (*pb.WatchMemoryResponse, error) {
	for {
		if w.stream == nil {
			if err := w.tried(w.open()); err != nil {
				return nil, err
			}
			continue
		}
		event, err := w.receive()
		if err == nil {
			w.pauses.restart()
			return event, nil
		}
		if err := w.tried(err); err != nil {
			return nil, err
		}
	}
}

// Events yields the revisions, without an end: Close ends it, or the context.
func (w *Watch) Events() iter.Seq2[*pb.WatchMemoryResponse, error] {
	return func(yield func(*pb.WatchMemoryResponse, error) bool) {
		for {
			event, err := w.Next()
			if !yield(event, err) || err != nil {
				return
			}
		}
	}
}

// open opens a stream; its first message says that it has begun.
func (w *Watch) open() error {
	if token := w.ResumeToken(); token != "" {
		w.request.Start = &pb.WatchMemoryRequest_ResumeToken{ResumeToken: token}
	}
	var ctx context.Context
	ctx, w.drop = context.WithCancel(w.ctx)
	stream, err := w.memory.session.connection.memories.WatchMemory(ctx, w.request)
	if err != nil {
		return err
	}
	w.stream = stream
	_, err = w.receive()
	return err
}

func (w *Watch) receive() (*pb.WatchMemoryResponse, error) {
	event, err := w.stream.Recv()
	if isEnd(err) {
		// The service ends a stream only with a reason: it is opened again.
		return nil, &Error{code: codes.Unavailable, message: "the service ended the watch without a reason"}
	}
	if err != nil {
		return nil, err
	}
	w.lostAt = time.Time{}
	w.token.Lock()
	w.resume = event.GetResumeToken()
	w.token.Unlock()
	return event, nil
}

// tried drops a stream that ended with err, and pauses; its error ends the watch.
func (w *Watch) tried(err error) error {
	if err == nil {
		return nil
	}
	w.stream = nil
	w.drop()
	reach := w.memory.session.connection.reach
	known := reach.failure(w.ctx, err)
	if w.ctx.Err() != nil {
		known.cause = context.Cause(w.ctx)
		return known
	}
	if w.lostAt.IsZero() {
		w.lostAt = time.Now()
	}
	pause := w.pauses.pause(known)
	if !mayPass(known) || time.Now().Add(pause).After(w.lostAt.Add(reach.tryFor(w.giveUp))) {
		return known
	}
	_ = sleep(w.ctx, pause)
	return nil
}
