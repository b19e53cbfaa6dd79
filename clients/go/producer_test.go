package palimpsest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"google.golang.org/genproto/googleapis/rpc/errdetails"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

func open(t *testing.T, client *Client, options *ProducerOptions) *Producer {
	t.Helper()
	producer, err := client.Session("s").OpenProducer(t.Context(), "p", options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(producer.stop)
	return producer
}

func send(t *testing.T, producer *Producer, count int) {
	t.Helper()
	for at := range count {
		if _, err := producer.Send(t.Context(), Text(fmt.Sprint("chunk ", at+1))); err != nil {
			t.Fatal(err)
		}
	}
}

func TestUnackedChunksAreSentAgainUnderTheirNumbers(t *testing.T) {
	kept, streams := &log{}, atomic.Int32{}
	client := serve(t, &server{appendChunks: func(stream pb.SessionService_AppendChunksServer) error {
		number := streams.Add(1)
		return kept.appendTo(stream, 1000, func() error {
			if number <= 3 {
				// Stored, and the ack is lost.
				return status.Error(codes.Unavailable, "the connection is lost")
			}
			return nil
		})
	}})
	producer := open(t, client, &ProducerOptions{BatchChunks: 2})
	send(t, producer, 9)
	ack, err := producer.Flush(t.Context())
	if err != nil || ack.Sequence != 9 || kept.last() != 9 {
		t.Fatal(ack, err, kept.texts)
	}
	if len(kept.came) < 10 || streams.Load() != 4 {
		t.Error("nothing came again: ", kept.came, streams.Load())
	}
}

func TestAProducerThatIsFencedEndsWithThatReason(t *testing.T) {
	kept := &log{}
	client := serve(t, &server{appendChunks: func(stream pb.SessionService_AppendChunksServer) error {
		return kept.appendTo(stream, 1000, func() error {
			return refusal(codes.Aborted, ReasonProducerFenced, map[string]string{"epoch": "4"})
		})
	}})
	producer := open(t, client, nil)
	send(t, producer, 1)
	for range 2 {
		_, err := producer.Flush(t.Context())
		var fenced *Error
		if !errors.Is(err, ReasonProducerFenced) || !errors.As(err, &fenced) || fenced.Metadata()["epoch"] != "4" || fenced.Retryable() {
			t.Fatal(err)
		}
	}
	if _, err := producer.Send(t.Context(), Text("more")); !errors.Is(err, ReasonProducerFenced) {
		t.Error(err)
	}
	if err := producer.Close(t.Context()); !errors.Is(err, ReasonProducerFenced) {
		t.Error(err)
	}
}

func TestSendWaitsForCredit(t *testing.T) {
	kept, release := &log{}, make(chan struct{})
	client := serve(t, &server{appendChunks: func(stream pb.SessionService_AppendChunksServer) error {
		return kept.appendTo(stream, 2, func() error { <-release; return nil })
	}})
	producer := open(t, client, nil)
	send(t, producer, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := producer.Send(ctx, Text("one too many")); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal("it did not wait: ", err)
	}
	close(release)
	sequence, err := producer.Send(t.Context(), Text("chunk 3"))
	if err != nil || sequence != 3 {
		t.Fatal(sequence, err)
	}
	if err := producer.Close(t.Context()); err != nil || kept.last() != 3 {
		t.Fatal(err, kept.texts)
	}
}

func TestChunksThatWaitAreSentTogether(t *testing.T) {
	kept, began, release := &log{}, make(chan struct{}, 10), make(chan struct{})
	client := serve(t, &server{appendChunks: func(stream pb.SessionService_AppendChunksServer) error {
		return kept.appendTo(stream, 1000, func() error { began <- struct{}{}; <-release; return nil })
	}})
	producer := open(t, client, &ProducerOptions{BatchChunks: 100, Linger: time.Minute})
	send(t, producer, 1)
	// The first is under way; the others wait for its ack, or for a full batch.
	<-began
	for at := range 150 {
		if _, err := producer.Send(t.Context(), Text(fmt.Sprint("more ", at))); err != nil {
			t.Fatal(err)
		}
	}
	close(release)
	if err := producer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(kept.batches) != "[1 100 50]" {
		t.Error(kept.batches)
	}
}

func TestARefusalNamesTheAppend(t *testing.T) {
	client := serve(t, &server{appendChunks: func(stream pb.SessionService_AppendChunksServer) error {
		return (&log{}).appendTo(stream, 1000, func() error {
			wrong := &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "batch.chunks[1].thread", Description: "too long"}}}
			return refusal(codes.InvalidArgument, ReasonFieldInvalid, nil, wrong)
		})
	}})
	producer := open(t, client, nil)
	producer.mutex.Lock() // Both go into one batch.
	for _, text := range []string{"one", "two"} {
		one, err := producer.queue.prepare(Text(text))
		if err != nil {
			t.Fatal(err)
		}
		producer.queue.put(one)
	}
	producer.signal()
	producer.mutex.Unlock()
	_, err := producer.Flush(t.Context())
	if known := asError(err); known == nil || known.Metadata()["producer_sequence"] != "2" {
		t.Fatal(err)
	}
}

func TestAChunkThatNoServiceAcceptsIsRefusedAlone(t *testing.T) {
	kept := &log{}
	client := serve(t, &server{appendChunks: func(stream pb.SessionService_AppendChunksServer) error {
		return kept.appendTo(stream, 1000, func() error { return nil })
	}})
	producer := open(t, client, nil)
	for _, wrong := range []Chunk{Text(""), Text("a\x00b"), Text("\xff"), Message("", ""), {Text: "both", Thought: "x"}} {
		if _, err := producer.Send(t.Context(), wrong); !errors.Is(err, ReasonFieldInvalid) {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
	send(t, producer, 1)
	if err := producer.Close(t.Context()); err != nil || kept.last() != 1 {
		t.Error(err)
	}
	if _, err := producer.Send(t.Context(), Text("late")); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestAProducerGivesUpAServiceThatIsLost(t *testing.T) {
	opened := atomic.Bool{}
	client := serve(t, &server{appendChunks: func(stream pb.SessionService_AppendChunksServer) error {
		if opened.Swap(true) {
			return refusal(codes.Unavailable, ReasonDatabaseUnavailable, nil, soon())
		}
		return (&log{}).appendTo(stream, 1000, func() error { return status.Error(codes.Unavailable, "lost") })
	}})
	producer := open(t, client, &ProducerOptions{GiveUp: 50 * time.Millisecond})
	send(t, producer, 1)
	_, err := producer.Flush(t.Context())
	if !errors.Is(err, CodeError(codes.Unavailable)) || !asError(err).Retryable() {
		t.Fatal(err)
	}
}
