package palimpsest

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// lingerTime is how long chunks wait for more of them while a batch is not acked yet.
const lingerTime = 5 * time.Millisecond

// ProducerOptions are the options of [Session.OpenProducer].
type ProducerOptions struct {
	// Epoch fences off streams of lower epochs, such as those of a process that was replaced.
	Epoch int64
	// ExpectedHead is the position that the log must end at when the producer opens, else it is
	// refused (ReasonHeadMismatch); nil: any.
	ExpectedHead *int64
	// BatchChunks and BatchBytes limit a batch; 0: 256 chunks and 1 MiB, which are the most.
	BatchChunks int
	BatchBytes  int
	// Linger is how long chunks wait for more of them while an earlier batch is not acked yet; 0: 5
	// milliseconds. Without one under way they are sent at once.
	Linger time.Duration
	// GiveUp is how long to try a service that is lost, or accepts nothing; 0: a minute. It is
	// shorter before the first contact: [WithReachTimeout].
	GiveUp time.Duration
}

// Producer appends chunks in order, each exactly once, over one long-lived stream. Chunks are kept
// until they are acked, and sent again under the same numbers when the connection is lost.
//
// A producer that is opened again under the same id, in any process, continues after the durable
// chunks: an interrupted ingestion skips LastAcked of them. All goroutines can share a producer.
type Producer struct {
	session *Session
	opening *pb.AppendChunksRequest_Open
	options ProducerOptions
	// Of the streams; ends with Close.
	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{}

	mutex   sync.Mutex
	queue   *queue
	failure error
	closing bool
	// Closed and replaced at each change of the above.
	changed chan struct{}
}

// OpenProducer opens a producer. id is its lasting name within the session; no two processes may
// use one name at once, unless with another Epoch: the lower one is then fenced off, which is a
// [ReasonProducerFenced]. ctx limits the opening alone; Close ends the producer.
func (s *Session) OpenProducer(ctx context.Context, id string, options *ProducerOptions) (*Producer, error) {
	given := orZero(options)
	given.BatchChunks = min(cmp.Or(max(given.BatchChunks, 0), maxBatchChunks), maxBatchChunks)
	given.BatchBytes = min(cmp.Or(max(given.BatchBytes, 0), maxBatchBytes), maxBatchBytes)
	given.Linger = cmp.Or(given.Linger, lingerTime)
	given.GiveUp = cmp.Or(given.GiveUp, giveUpTimeout)
	producer := &Producer{
		session: s, options: given, queue: newQueue(), ended: make(chan struct{}), changed: make(chan struct{}),
		opening: &pb.AppendChunksRequest_Open{Session: s.id, ProducerId: id, Epoch: given.Epoch, ExpectedHead: given.ExpectedHead},
	}
	producer.ctx, producer.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go producer.run()
	err := producer.until(ctx, func() bool { return producer.queue.opened })
	if err != nil {
		producer.stop()
		return nil, err
	}
	return producer, nil
}

// LastAcked returns the highest number of this producer that is durable; 0 where there is none.
func (p *Producer) LastAcked() int64 {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.queue.acked
}

// Send appends a chunk, and returns its number: 1, 2, 3 … of this producer. It waits only while
// there is no credit left. A chunk that no service accepts is refused alone. One beyond the limits
// of this service ends the producer when it arrives: that error, with the number of the append, is
// returned from then on. The chunk is durable when Flush returns, or LastAcked has reached its
// number.
func (p *Producer) Send(ctx context.Context, chunk Chunk) (int64, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.closing {
		return 0, closedProducer()
	}
	one, err := p.queue.prepare(chunk)
	if err != nil {
		return 0, err
	}
	if err := p.wait(ctx, func() bool { return p.queue.hasCredit(one.size) }); err != nil {
		return 0, err
	}
	if p.closing {
		return 0, closedProducer()
	}
	one.span = p.session.connection.traceparent(ctx)
	sequence := p.queue.put(one)
	p.signal()
	return sequence, nil
}

// Flush waits until all that was sent is durable, and returns the newest ack of this run; nil where
// nothing was sent.
func (p *Producer) Flush(ctx context.Context) (*Ack, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	wanted := p.queue.next - 1
	err := p.wait(ctx, func() bool { return p.queue.acked >= wanted })
	return p.queue.ack, err
}

// Close waits until all that was sent is durable, and ends the producer. When ctx ends, it ends at
// once, and what is not acked may be lost. It returns the error that ended the producer, if one did.
func (p *Producer) Close(ctx context.Context) error {
	_, err := p.Flush(ctx)
	p.stop()
	return err
}

// stop ends the producer at once.
func (p *Producer) stop() {
	p.mutex.Lock()
	p.closing = true
	p.signal()
	p.mutex.Unlock()
	p.cancel()
	<-p.ended
}

func closedProducer() *Error {
	return &Error{code: codes.FailedPrecondition, message: "the producer is closed", cause: ErrClosed}
}

// signal wakes what waits for a change. The mutex is locked.
func (p *Producer) signal() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Producer) until(ctx context.Context, reached func() bool) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.wait(ctx, reached)
}

// wait waits until something is reached, or returns what ended the producer or ctx. The mutex is
// locked, but for the time of waiting.
func (p *Producer) wait(ctx context.Context, reached func() bool) error {
	for !reached() {
		if p.failure != nil {
			return p.failure
		}
		changed := p.changed
		p.mutex.Unlock()
		select {
		case <-changed:
			p.mutex.Lock()
		case <-ctx.Done():
			p.mutex.Lock()
			return endedContext(ctx)
		}
	}
	return p.failure
}

// endedContext returns the error of a wait that a context ended.
func endedContext(ctx context.Context) *Error {
	code := codes.Canceled
	if ctx.Err() == context.DeadlineExceeded {
		code = codes.DeadlineExceeded
	}
	return &Error{code: code, message: fmt.Sprintf("the wait has ended: %v", ctx.Err()), cause: ctx.Err()}
}

// run keeps a stream open until the producer is closed, or refused for good.
func (p *Producer) run() {
	defer close(p.ended)
	err := p.keepOpen()
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.failure = err
	p.signal()
}

func (p *Producer) keepOpen() error {
	pauses := streamBackoff()
	reach := p.session.connection.reach
	progress, since := int64(0), time.Now()
	for {
		streamed, err := p.stream()
		p.mutex.Lock()
		closing, idle, acked := p.closing, streamed && p.queue.isEmpty(), p.queue.acked
		refused := err
		if !mayPass(err) {
			refused = p.queue.refusal(err)
		}
		p.mutex.Unlock()
		if closing {
			return closedProducer()
		}
		if !mayPass(err) {
			return refused
		}
		// A stream that ended while there was nothing to send did all that was asked of it.
		if idle || acked > progress {
			progress, since = acked, time.Now()
			pauses.restart()
		}
		if time.Since(since) > reach.tryFor(p.options.GiveUp) {
			return err
		}
		if sleep(p.ctx, pauses.pause(err)) != nil {
			return closedProducer()
		}
	}
}

// stream sends and receives over one stream, until that ends; it reports whether it was opened.
func (p *Producer) stream() (bool, *Error) {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	reach := p.session.connection.reach
	stream, err := p.session.connection.sessions.AppendChunks(ctx)
	if err == nil {
		err = stream.Send(&pb.AppendChunksRequest{Frame: &pb.AppendChunksRequest_Open_{Open: p.opening}})
	}
	if err != nil && !isEnd(err) {
		return false, reach.failure(ctx, err)
	}
	opened := false
	sender := sync.WaitGroup{}
	// Before it returns: what is sent later would go into a stream that is none.
	defer sender.Wait()
	defer cancel()
	for {
		reply, err := stream.Recv()
		if isEnd(err) {
			return opened, &Error{code: codes.Unavailable, message: "the service ended the stream without a reason"}
		}
		if err != nil {
			return opened, reach.failure(ctx, err)
		}
		p.mutex.Lock()
		if opened {
			p.queue.takeAck(reply.GetAck())
		} else {
			p.queue.begin(reply.GetOpened())
			// The head was checked; what is appended now moves it on.
			p.opening.ExpectedHead = nil
			opened = true
			sender.Go(func() { p.send(ctx, stream) })
		}
		p.signal()
		p.mutex.Unlock()
	}
}

// send sends batches until the stream has ended, which the receiver sees.
func (p *Producer) send(ctx context.Context, stream pb.SessionService_AppendChunksClient) {
	for {
		batch := p.nextBatch(ctx)
		if batch == nil {
			return
		}
		if stream.Send(&pb.AppendChunksRequest{Frame: &pb.AppendChunksRequest_Batch_{Batch: batch}}) != nil {
			return
		}
	}
}

// nextBatch waits for chunks. While an earlier batch is under way, it waits a little for more: until
// a batch is full, all others are acked, or Linger has passed. nil: the stream has ended.
func (p *Producer) nextBatch(ctx context.Context) *pb.AppendChunksRequest_Batch {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	var lingers <-chan time.Time
	for {
		chunks, bytes := p.options.BatchChunks, int64(p.options.BatchBytes)
		expired := false
		if len(p.queue.waiting) > 0 {
			if len(p.queue.underWay) == 0 || p.queue.isFull(chunks, bytes) {
				return p.queue.batch(chunks, bytes)
			}
			if lingers == nil {
				lingers = time.After(p.options.Linger)
			}
		}
		changed := p.changed
		p.mutex.Unlock()
		select {
		case <-changed:
		case <-lingers:
			expired = true
		case <-ctx.Done():
		}
		p.mutex.Lock()
		if ctx.Err() != nil {
			return nil
		}
		if expired {
			return p.queue.batch(chunks, bytes)
		}
	}
}
