package palimpsest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

type spanKey struct{}

// span returns a context with a span, whose trace is a digit.
func span(ctx context.Context, trace int, sampled bool) context.Context {
	flags := map[bool]string{true: "01", false: "00"}[sampled]
	return context.WithValue(ctx, spanKey{}, fmt.Sprintf("00-%032d-%016d-%s", trace, 7, flags))
}

func spanOf(ctx context.Context) map[string]string {
	header, _ := ctx.Value(spanKey{}).(string)
	return map[string]string{"traceparent": header, "tracestate": "vendor=1", "baggage": "secret=1"}
}

func TestCallsAndBatchesHaveTheirSpan(t *testing.T) {
	var mutex sync.Mutex
	headers, batches := map[string]metadata.MD{}, []string{}
	seen := func(ctx context.Context, method string) {
		mutex.Lock()
		defer mutex.Unlock()
		headers[method], _ = metadata.FromOutgoingContext(ctx)
	}
	kept := &log{}
	client := serve(t, &server{
		createSession: func(request *pb.CreateSessionRequest) (*pb.Session, error) { return request.GetSession(), nil },
		appendChunks: func(stream pb.SessionService_AppendChunksServer) error {
			return kept.appendTo(&spannedStream{stream, &mutex, &batches}, 1000, func() error { return nil })
		},
	}, WithTraceHeaders(spanOf), WithDialOptions(
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
			seen(ctx, "unary")
			return invoke(ctx, method, request, reply, cc, options...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, description *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
			seen(ctx, "stream")
			return open(ctx, description, cc, method, options...)
		}),
	))
	ctx := span(t.Context(), 1, true)
	if _, err := client.CreateSession(ctx, "s", nil); err != nil {
		t.Fatal(err)
	}
	producer, err := client.Session("s").OpenProducer(ctx, "p", nil)
	if err != nil {
		t.Fatal(err)
	}
	for trace := 2; trace < 4; trace++ {
		if _, err := producer.Send(span(t.Context(), trace, true), Text(fmt.Sprint("chunk ", trace-1))); err != nil {
			t.Fatal(err)
		}
		if _, err := producer.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := producer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for method, found := range headers {
		wanted := []string{ctx.Value(spanKey{}).(string)}
		if fmt.Sprint(found.Get("traceparent")) != fmt.Sprint(wanted) || len(found.Get("tracestate")) != 1 || len(found.Get("baggage")) > 0 {
			t.Errorf("%s: %v", method, found)
		}
	}
	if len(headers) != 2 || len(batches) != 2 || traceOf(batches[0]) != fmt.Sprintf("%032d", 2) || traceOf(batches[1]) != fmt.Sprintf("%032d", 3) {
		t.Errorf("%v %q", headers, batches)
	}
}

// spannedStream notes the spans of batches.
type spannedStream struct {
	pb.SessionService_AppendChunksServer
	mutex *sync.Mutex
	spans *[]string
}

func (s *spannedStream) Recv() (*pb.AppendChunksRequest, error) {
	request, err := s.SessionService_AppendChunksServer.Recv()
	if batch := request.GetBatch(); batch != nil {
		s.mutex.Lock()
		defer s.mutex.Unlock()
		*s.spans = append(*s.spans, batch.GetTraceparent())
	}
	return request, err
}

func TestABatchHasChunksOfOneSampledTraceUnlessThereAreMany(t *testing.T) {
	spanned := func(trace int, sampled bool) sent {
		return sent{&pb.Chunk{}, 1, spanOf(span(context.Background(), trace, sampled))["traceparent"]}
	}
	for _, one := range []struct {
		waiting []sent
		sizes   []int
		trace   string
	}{
		{[]sent{spanned(1, true), spanned(1, true), spanned(2, true)}, []int{2, 1}, fmt.Sprintf("%032d", 1)},
		{[]sent{spanned(1, false), spanned(2, false)}, []int{2}, ""},
		{[]sent{{chunk: &pb.Chunk{}}, {chunk: &pb.Chunk{}}}, []int{2}, ""},
	} {
		queue := newQueue()
		queue.credits, queue.waiting = &pb.AppendChunksResponse_Credits{Chunks: 100, Bytes: 1000}, one.waiting
		for at, size := range one.sizes {
			batch := queue.batch(100, 1000)
			if len(batch.GetChunks()) != size || at == 0 && traceOf(batch.GetTraceparent()) != one.trace {
				t.Errorf("%d chunks of %q, not %d", len(batch.GetChunks()), batch.GetTraceparent(), size)
			}
		}
	}
	// A message for each of many chunks would cost too much.
	queue := newQueue()
	queue.credits = &pb.AppendChunksResponse_Credits{Chunks: 1000, Bytes: 1000}
	for trace := range 100 {
		queue.waiting = append(queue.waiting, spanned(trace, true))
	}
	if batch := queue.batch(1000, 1000); len(batch.GetChunks()) != traceChunks {
		t.Error(len(batch.GetChunks()))
	}
}
