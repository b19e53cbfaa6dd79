package palimpsest

import (
	"context"
	"flag"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// TestMain lets the examples that need a service use the one at PALIMPSEST_TEST_ADDRESS, and leaves them
// out without it.
func TestMain(m *testing.M) {
	flag.Parse()
	skip := flag.Lookup("test.skip")
	if address := os.Getenv("PALIMPSEST_TEST_ADDRESS"); address != "" {
		os.Setenv(addressVariable, address)
	} else if skip.Value.String() == "" {
		_ = skip.Value.Set("^Example($|_|Client|Session|Memory|CreateMemory|Error)")
	}
	os.Exit(m.Run())
}

// server is a service in this process, whose calls a test writes.
type server struct {
	pb.UnimplementedSessionServiceServer
	pb.UnimplementedAnswerServiceServer
	pb.UnimplementedMemoryServiceServer
	pb.UnimplementedOperationServiceServer
	pb.UnimplementedAccessServiceServer

	appendChunks  func(pb.SessionService_AppendChunksServer) error
	createSession func(*pb.CreateSessionRequest) (*pb.Session, error)
	append        func(*pb.AppendRequest) (*pb.AppendResponse, error)
	ask           func(*pb.AskRequest, pb.AnswerService_AskServer) error
	resume        func(*pb.ResumeAnswerRequest, pb.AnswerService_ResumeAnswerServer) error
	watch         func(*pb.WatchMemoryRequest, pb.MemoryService_WatchMemoryServer) error
	askMany       func(*pb.AskManyRequest, pb.AnswerService_AskManyServer) error
	wait          func(*pb.WaitOperationRequest, pb.OperationService_WaitOperationServer) error
	createKey     func(*pb.CreateApiKeyRequest) (*pb.CreateApiKeyResponse, error)
}

func (s *server) AppendChunks(stream pb.SessionService_AppendChunksServer) error {
	return s.appendChunks(stream)
}

func (s *server) CreateSession(_ context.Context, request *pb.CreateSessionRequest) (*pb.Session, error) {
	return s.createSession(request)
}

func (s *server) Append(_ context.Context, request *pb.AppendRequest) (*pb.AppendResponse, error) {
	return s.append(request)
}

func (s *server) Ask(request *pb.AskRequest, stream pb.AnswerService_AskServer) error {
	return s.ask(request, stream)
}

func (s *server) ResumeAnswer(request *pb.ResumeAnswerRequest, stream pb.AnswerService_ResumeAnswerServer) error {
	return s.resume(request, stream)
}

func (s *server) WatchMemory(request *pb.WatchMemoryRequest, stream pb.MemoryService_WatchMemoryServer) error {
	return s.watch(request, stream)
}

func (s *server) AskMany(request *pb.AskManyRequest, stream pb.AnswerService_AskManyServer) error {
	return s.askMany(request, stream)
}

func (s *server) GetOperation(_ context.Context, request *pb.GetOperationRequest) (*pb.Operation, error) {
	return &pb.Operation{Id: request.GetOperation()}, nil
}

func (s *server) WaitOperation(request *pb.WaitOperationRequest, stream pb.OperationService_WaitOperationServer) error {
	return s.wait(request, stream)
}

func (s *server) CreateApiKey(_ context.Context, request *pb.CreateApiKeyRequest) (*pb.CreateApiKeyResponse, error) {
	return s.createKey(request)
}

// serve starts a service, and returns a client of it.
func serve(t *testing.T, calls *server, options ...Option) *Client {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	running := grpc.NewServer()
	pb.RegisterSessionServiceServer(running, calls)
	pb.RegisterAnswerServiceServer(running, calls)
	pb.RegisterMemoryServiceServer(running, calls)
	pb.RegisterOperationServiceServer(running, calls)
	pb.RegisterAccessServiceServer(running, calls)
	var serving sync.WaitGroup
	serving.Go(func() { _ = running.Serve(listener) })
	options = append([]Option{
		WithAddress("unix:bufconn"), WithTransportCredentials(insecure.NewCredentials()),
		WithDialOptions(grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) })),
	}, options...)
	client, err := Connect(t.Context(), options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); running.Stop(); serving.Wait() })
	return client
}

// refusal returns a status as the service makes it.
func refusal(code codes.Code, reason Reason, metadata map[string]string, details ...protoadapt.MessageV1) error {
	info := &errdetails.ErrorInfo{Reason: string(reason), Domain: "palimpsest", Metadata: metadata}
	said, err := status.New(code, "it is refused; do something else").WithDetails(append(details, info)...)
	if err != nil {
		panic(err)
	}
	return said.Err()
}

func soon() *errdetails.RetryInfo {
	return &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Millisecond)}
}

// log is a session's log on the service's side: it keeps what producers sent, once.
type log struct {
	mutex sync.Mutex
	texts []string
	// Sequences as they came, those that came again included.
	came []int64
	// Chunks of each batch.
	batches []int
}

// write stores a batch; false: a sequence is missing before it.
func (l *log) write(batch *pb.AppendChunksRequest_Batch) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.batches = append(l.batches, len(batch.GetChunks()))
	for _, chunk := range batch.GetChunks() {
		l.came = append(l.came, chunk.GetProducerSequence())
		switch sequence := int(chunk.GetProducerSequence()); {
		case sequence == len(l.texts)+1:
			l.texts = append(l.texts, chunk.GetText())
		case sequence > len(l.texts)+1 || l.texts[sequence-1] != chunk.GetText():
			return false
		}
	}
	return true
}

func (l *log) last() int64 {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return int64(len(l.texts))
}

func (l *log) opened(credits int32) *pb.AppendChunksResponse {
	return &pb.AppendChunksResponse{Frame: &pb.AppendChunksResponse_Opened_{Opened: &pb.AppendChunksResponse_Opened{
		LastProducerSequence: l.last(), Head: l.last(), Credits: &pb.AppendChunksResponse_Credits{Chunks: credits, Bytes: 1 << 20},
	}}}
}

func (l *log) ack() *pb.AppendChunksResponse {
	return &pb.AppendChunksResponse{Frame: &pb.AppendChunksResponse_Ack_{Ack: &pb.AppendChunksResponse_Ack{
		ThroughProducerSequence: l.last(), ThroughPosition: l.last(), ReadToken: "token",
	}}}
}

// appendTo serves a stream; after each batch, before its ack, `after` may end it.
func (l *log) appendTo(stream pb.SessionService_AppendChunksServer, credits int32, after func() error) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if err := stream.Send(l.opened(credits)); err != nil {
		return err
	}
	for {
		request, err := stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if !l.write(request.GetBatch()) {
			return refusal(codes.OutOfRange, ReasonSequenceGap, nil)
		}
		if err := after(); err != nil {
			return err
		}
		if err := stream.Send(l.ack()); err != nil {
			return err
		}
	}
}
