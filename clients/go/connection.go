package palimpsest

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// Version is that of this client.
const Version = "0.1.0"

// maxSentBytes is what the service accepts as one message.
const maxSentBytes = 4 << 20

// connection is what all objects of a client share. Its stubs repeat calls, give requests their
// ids, and return *Error.
type connection struct {
	*grpc.ClientConn
	reach   *reach
	timeout time.Duration
	trace   func(context.Context) map[string]string

	sessions   pb.SessionServiceClient
	memories   pb.MemoryServiceClient
	answers    pb.AnswerServiceClient
	states     pb.StateServiceClient
	operations pb.OperationServiceClient
	trees      pb.TreeServiceClient
	billing    pb.BillingServiceClient
	access     pb.AccessServiceClient
}

func dial(settings *settings) (*connection, error) {
	address, secure, err := parseAddress(settings.address)
	if err != nil {
		return nil, err
	}
	access, err := newAccess(settings, address, secure)
	if err != nil {
		return nil, err
	}
	made := &connection{
		reach:   &reach{address: address, timeout: settings.reachTimeout},
		timeout: settings.timeout,
		trace:   settings.trace,
	}
	transport := access.transport
	if transport == nil {
		transport = insecure.NewCredentials()
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithUserAgent("palimpsest-go/" + Version),
		grpc.WithChainUnaryInterceptor(made.unary),
		grpc.WithChainStreamInterceptor(made.stream),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(8<<20), grpc.MaxCallSendMsgSize(maxSentBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           grpcbackoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
	}
	if access.token != nil {
		options = append(options, grpc.WithPerRPCCredentials(bearer{access.token}))
	}
	if access.withoutProxy {
		options = append(options, grpc.WithNoProxy())
	}
	options = append(options, settings.dialOptions...)
	made.ClientConn, err = grpc.NewClient(address, options...)
	if err != nil {
		return nil, fmt.Errorf("palimpsest: %w", err)
	}
	made.sessions = pb.NewSessionServiceClient(made)
	made.memories = pb.NewMemoryServiceClient(made)
	made.answers = pb.NewAnswerServiceClient(made)
	made.states = pb.NewStateServiceClient(made)
	made.operations = pb.NewOperationServiceClient(made)
	made.trees = pb.NewTreeServiceClient(made)
	made.billing = pb.NewBillingServiceClient(made)
	made.access = pb.NewAccessServiceClient(made)
	return made, nil
}

// onceKey marks the context of a call that costs each time it is made.
type onceKey struct{}

// onceMethods make something new each time they are called, and have no request ids.
var onceMethods = []string{pb.AccessService_CreateApiKey_FullMethodName, pb.AccessService_RotateApiKey_FullMethodName}

// withDeadline returns a context that ends when the call must: by its own deadline, else by the
// client's timeout, else after the default of the method.
func (c *connection) withDeadline(ctx context.Context, preset time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	if c.timeout > 0 {
		preset = c.timeout
	}
	return context.WithTimeout(ctx, preset)
}

// unary makes a call, and repeats it while the service is away or full.
func (c *connection) unary(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	preset := callTimeout
	if method == pb.SessionService_Append_FullMethodName {
		preset = longTimeout
	}
	ctx, cancel := c.withDeadline(ctx, preset)
	defer cancel()
	ctx = c.traced(ctx)
	if message, ok := request.(proto.Message); ok {
		request = identified(message)
	}
	began, until := time.Now(), time.Time{}
	until, _ = ctx.Deadline()
	once := ctx.Value(onceKey{}) != nil || slices.Contains(onceMethods, method)
	pauses := callBackoff()
	for {
		err := invoke(ctx, method, request, reply, cc, options...)
		if err == nil {
			c.reach.reached.Store(true)
			return nil
		}
		known := c.reach.failure(ctx, err)
		again := mayPass(known) && !once || isUnbegun(known)
		pause := pauses.pause(known)
		last := began.Add(c.reach.tryFor(until.Sub(began)))
		if !again || time.Now().Add(pause).After(last) || sleep(ctx, pause) != nil {
			return known
		}
	}
}

// identified returns the request with an id, where it writes and has none yet: the service does
// what has the same id once, so that a lost reply is no reason to do it twice. The request of the
// program stays as it is, since it may be sent again on purpose.
func identified(request proto.Message) proto.Message {
	message := request.ProtoReflect()
	field := message.Descriptor().Fields().ByName("request_id")
	if field == nil || field.Kind() != protoreflect.StringKind || message.Get(field).String() != "" {
		return request
	}
	named := proto.Clone(request)
	named.ProtoReflect().Set(field, protoreflect.ValueOfString(newRequestID()))
	return named
}

// newRequestID returns an id that no other request has.
func newRequestID() string { return strings.ToLower(rand.Text()) }

// stream opens a stream, whose errors are this package's. It is not repeated: what has been
// received of it says where to go on.
func (c *connection) stream(ctx context.Context, description *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx = c.traced(ctx)
	opened, err := open(ctx, description, cc, method, options...)
	if err != nil {
		return nil, c.reach.failure(ctx, err)
	}
	return &stream{ClientStream: opened, ctx: ctx, reach: c.reach}, nil
}

type stream struct {
	grpc.ClientStream
	ctx   context.Context
	reach *reach
}

// RecvMsg receives a message, or the stream's end: io.EOF or *Error.
func (s *stream) RecvMsg(message any) error {
	err := s.ClientStream.RecvMsg(message)
	if err == nil {
		s.reach.reached.Store(true)
		return nil
	}
	if isEnd(err) {
		return err
	}
	return s.reach.failure(s.ctx, err)
}

// bearer sends the token of each call.
type bearer struct{ token func() (string, error) }

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := b.token()
	if err != nil {
		return nil, noToken(err)
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity returns false: newAccess has checked where the token may go.
func (b bearer) RequireTransportSecurity() bool { return false }

var _ credentials.PerRPCCredentials = bearer{}
