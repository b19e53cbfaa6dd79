package palimpsest

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// ErrClosed is what errors.Is finds where a client, a producer, a watch or an agent is used after
// it was closed.
var ErrClosed = errors.New("it is closed")

func isEnd(err error) bool { return errors.Is(err, io.EOF) }

// settings are what the options of [Connect] set.
type settings struct {
	address                          string
	token, tokenFile                 string
	tokenSource                      func() (string, error)
	caFile, certificateFile, keyFile string
	transport                        credentials.TransportCredentials
	plainToken                       bool
	timeout, reachTimeout            time.Duration
	trace                            func(context.Context) map[string]string
	dialOptions                      []grpc.DialOption
}

// Option is an option of [Connect].
type Option func(*settings)

// WithAddress names the service: HOST:PORT, grpc://HOST:PORT, grpcs://HOST:PORT (TLS) or unix:PATH.
// The default is PALIMPSEST_ADDRESS, else where `palimpsest up` listens.
func WithAddress(address string) Option { return func(s *settings) { s.address = address } }

// WithToken sends an API key or a JSON Web Token with each call. The default is PALIMPSEST_TOKEN.
// It goes to other machines by TLS only, unless [WithPlainToken] allows it.
func WithToken(token string) Option { return func(s *settings) { s.token = token } }

// WithTokenFile names a file with the token, which is read again when it has changed. The default
// is PALIMPSEST_TOKEN_FILE.
func WithTokenFile(path string) Option { return func(s *settings) { s.tokenFile = path } }

// WithTokenSource calls a function for the token of each call. Its errors are not repeated in
// errors of this package, since they may have anything in them.
func WithTokenSource(source func() (string, error)) Option {
	return func(s *settings) { s.tokenSource = source }
}

// WithPlainToken allows to send the token to another machine without TLS (PALIMPSEST_PLAIN_TOKEN).
func WithPlainToken() Option { return func(s *settings) { s.plainToken = true } }

// WithCAFile names the roots to trust, in PEM (PALIMPSEST_CA_FILE). The default is the system's.
func WithCAFile(path string) Option { return func(s *settings) { s.caFile = path } }

// WithCertificateFiles names the client's own certificate and its key, in PEM
// (PALIMPSEST_CERTIFICATE_FILE, PALIMPSEST_KEY_FILE).
func WithCertificateFiles(certificate, key string) Option {
	return func(s *settings) { s.certificateFile, s.keyFile = certificate, key }
}

// WithTransportCredentials replaces what the scheme of the address and the files say.
func WithTransportCredentials(transport credentials.TransportCredentials) Option {
	return func(s *settings) { s.transport = transport }
}

// WithTimeout limits each call whose context has no deadline. The default is 30 seconds, and 60
// for questions and appends.
func WithTimeout(timeout time.Duration) Option { return func(s *settings) { s.timeout = timeout } }

// WithReachTimeout says how long to try a service that was never reached: 2.5 seconds, unless the
// service may be starting.
func WithReachTimeout(timeout time.Duration) Option {
	return func(s *settings) { s.reachTimeout = timeout }
}

// WithTraceHeaders sends the current span with each call, and with each batch of a producer, so that the
// spans of the service continue it. The function returns the headers of W3C Trace Context, as
// OpenTelemetry writes them; of others, such as baggage, nothing is sent:
//
//	palimpsest.WithTraceHeaders(func(ctx context.Context) map[string]string {
//		headers := propagation.MapCarrier{}
//		propagation.TraceContext{}.Inject(ctx, headers)
//		return headers
//	})
func WithTraceHeaders(headers func(context.Context) map[string]string) Option {
	return func(s *settings) { s.trace = headers }
}

// WithDialOptions adds options of gRPC, such as interceptors and handlers of statistics.
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(s *settings) { s.dialOptions = append(s.dialOptions, options...) }
}

// Client is a connection to the service. All goroutines can share it.
type Client struct{ connection *connection }

// Connect returns a client. Nothing is sent before the first call, which fails when the service
// cannot be reached for 2.5 seconds ([WithReachTimeout]); later, calls wait for a lost service
// until their deadlines. Connect fails for an address, a token or a certificate that cannot be
// used, and when ctx has ended.
func Connect(ctx context.Context, options ...Option) (*Client, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	chosen := &settings{reachTimeout: reachTimeout}
	for _, option := range options {
		option(chosen)
	}
	made, err := dial(chosen)
	if err != nil {
		return nil, err
	}
	return &Client{made}, nil
}

// Close closes the connection; calls that are under way fail.
func (c *Client) Close() error { return c.connection.Close() }

// Address returns the address of the service, in gRPC's form.
func (c *Client) Address() string { return c.connection.reach.address }

// Conn returns the connection for stubs of the package palimpsestpb:
//
//	page, err := palimpsestpb.NewSessionServiceClient(client.Conn()).ListSessions(ctx, request)
//
// Their unary calls are repeated, have the token, a deadline and a request id, and return *Error,
// as all calls of this package do.
func (c *Client) Conn() grpc.ClientConnInterface { return c.connection }

// Session returns a session by its id. Nothing is sent.
func (c *Client) Session(id string) *Session { return &Session{c.connection, id} }

// SessionOptions are the settings of a new session.
type SessionOptions struct {
	// ExistOK uses a session that exists already, unless its language is another one than Language.
	ExistOK bool
	// Language is that of the text search, such as "english"; empty: the service's default.
	Language string
	// Metadata has at most 16 keys and values of the program's own, which no model sees.
	Metadata map[string]string
	// DefaultMemory says whether the first append makes a general memory, "default"; nil: as the
	// service's setting says.
	DefaultMemory *bool
	// Retention says how long data is kept, where that differs from the tenant's policy.
	Retention *pb.Retention
	// RequestID makes a repeated call do nothing for 24 hours; empty: one is made for the call.
	RequestID string
}

// CreateSession creates a session, and fails with ReasonSessionExists where there is one, unless
// options.ExistOK is set.
func (c *Client) CreateSession(ctx context.Context, id string, options *SessionOptions) (*Session, error) {
	session := c.Session(id)
	return session, session.create(ctx, orZero(options))
}

// Sessions yields all sessions, by id.
func (c *Client) Sessions(ctx context.Context) iter.Seq2[*pb.Session, error] {
	request := &pb.ListSessionsRequest{PageSize: maxPage}
	return pages(func(token string) ([]*pb.Session, string, error) {
		request.PageToken = token
		page, err := c.connection.sessions.ListSessions(ctx, request)
		return page.GetSessions(), page.GetNextPageToken(), err
	})
}

// orZero returns what is pointed at, else its zero value.
func orZero[T any](given *T) T {
	if given == nil {
		var zero T
		return zero
	}
	return *given
}

// maxPage is how many items a page of a list has at most.
const maxPage = 1000

// pages yields the items of all pages of a list.
func pages[T any](page func(token string) ([]T, string, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for token := ""; ; {
			items, next, err := page(token)
			if err != nil {
				var zero T
				yield(zero, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if token = next; token == "" {
				return
			}
		}
	}
}

// Collect returns what a sequence yields, or its first error.
func Collect[T any](sequence iter.Seq2[T, error]) ([]T, error) {
	var items []T
	for item, err := range sequence {
		if err != nil {
			return items, err
		}
		items = append(items, item)
	}
	return items, nil
}
