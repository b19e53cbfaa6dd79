package palimpsest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Error is every error of the service, and of the way to it.
//
//	var refused *palimpsest.Error
//	if errors.As(err, &refused) {
//		log.Print(refused.Reason(), refused.Metadata()["session"])
//	}
//
// [errors.Is] compares with a [Reason], with a code of gRPC by [CodeError], with [context.Canceled]
// and with [context.DeadlineExceeded]:
//
//	if errors.Is(err, palimpsest.ReasonSessionNotFound) { … }
type Error struct {
	code     codes.Code
	message  string
	reason   Reason
	metadata map[string]string
	fields   map[string]string
	retry    time.Duration
	hasRetry bool
	// Whether nothing of the service has replied: a connection that failed, or was lost.
	unreached bool
	cause     error
}

// Reason is why the service refused, by the name of an ErrorReason of errors.proto without its
// prefix. It is an error, so that errors.Is can compare with it.
type Reason string

// Error returns the name.
func (r Reason) Error() string { return string(r) }

// CodeError is a code of gRPC as an error, for errors.Is:
//
//	errors.Is(err, palimpsest.CodeError(codes.NotFound))
type CodeError codes.Code

// Error returns the name of the code.
func (c CodeError) Error() string { return codes.Code(c).String() }

// Error returns one clear line.
func (e *Error) Error() string { return e.message }

// Code returns the status of gRPC.
func (e *Error) Code() codes.Code { return e.code }

// Reason returns why the service refused; empty where it gave no reason.
func (e *Error) Reason() Reason { return e.reason }

// Metadata returns the values that the reason's comment in errors.proto names.
func (e *Error) Metadata() map[string]string { return maps.Clone(e.metadata) }

// Fields returns the fields of the request that are wrong, each with what is wrong.
func (e *Error) Fields() map[string]string { return maps.Clone(e.fields) }

// RetryAfter returns when the service asks to try again, and whether it does.
func (e *Error) RetryAfter() (time.Duration, bool) { return e.retry, e.hasRetry }

// Retryable reports whether the same request may succeed later. Calls have been tried again until
// their deadlines when a program sees such an error.
func (e *Error) Retryable() bool { return mayPass(e) }

// Unwrap returns what ended the call on this side, if that was its context.
func (e *Error) Unwrap() error { return e.cause }

// Is compares with a [Reason] and a [CodeError].
func (e *Error) Is(target error) bool {
	switch wanted := target.(type) {
	case Reason:
		return wanted != "" && e.reason == wanted
	case CodeError:
		return e.code == codes.Code(wanted)
	}
	return target == context.DeadlineExceeded && e.code == codes.DeadlineExceeded
}

// GRPCStatus returns the code and the message, for google.golang.org/grpc/status.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.code, e.message) }

// reworded returns the same error with another message and more metadata.
func (e *Error) reworded(message string, metadata ...string) *Error {
	other := *e
	other.message = message
	other.metadata = e.Metadata()
	if other.metadata == nil {
		other.metadata = map[string]string{}
	}
	for at := 0; at+1 < len(metadata); at += 2 {
		other.metadata[metadata[at]] = metadata[at+1]
	}
	return &other
}

// asError returns the error of this package within err; nil where there is none.
func asError(err error) *Error {
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	return nil
}

// invalid returns what the client itself refuses, as the service would.
func invalid(field, format string, arguments ...any) *Error {
	what := fmt.Sprintf(format, arguments...)
	return &Error{
		code:    codes.InvalidArgument,
		message: fmt.Sprintf("%s: %s", field, what),
		reason:  ReasonFieldInvalid,
		fields:  map[string]string{field: what},
	}
}

// fromRPC returns the error of this package for one of gRPC's. ctx is that of the call.
func fromRPC(ctx context.Context, err error, address string) *Error {
	if known := asError(err); known != nil {
		return known
	}
	said, ok := status.FromError(err)
	if !ok {
		// Of ours, such as of a function that returns a token.
		return &Error{code: codes.Unknown, message: err.Error(), cause: err}
	}
	known := &Error{code: said.Code(), message: said.Message()}
	details := said.Details()
	for _, detail := range details {
		readDetail(known, detail)
	}
	if len(details) == 0 {
		withoutDetails(known, address)
	}
	if ended := ctx.Err(); ended != nil && (known.code == codes.Canceled || known.code == codes.DeadlineExceeded) {
		known.cause = ended
	}
	return known
}

func readDetail(known *Error, detail any) {
	switch one := detail.(type) {
	case *errdetails.ErrorInfo:
		known.reason = Reason(one.GetReason())
		known.metadata = one.GetMetadata()
	case *errdetails.BadRequest:
		known.fields = map[string]string{}
		for _, violation := range one.GetFieldViolations() {
			known.fields[violation.GetField()] = violation.GetDescription()
		}
	case *errdetails.RetryInfo:
		known.retry, known.hasRetry = one.GetRetryDelay().AsDuration(), true
	}
}

// handshakes are what gRPC and Go say of a connection that was made and then refused.
var handshakes = []struct{ sign, message string }{
	{"is valid for", "shows a certificate that is for another name: connect to a name that it has"},
	{"doesn't contain any IP SANs", "shows a certificate that is for another name: connect to a name that it has"},
	{"has expired", "shows a certificate that has expired: its operator renews it"},
	{"unknown authority", "shows a certificate of none of the trusted roots: name its root by WithCAFile (PALIMPSEST_CA_FILE)"},
	{"does not look like a TLS handshake", "does not use TLS: connect to grpc://HOST:PORT, on this machine only"},
	{"certificate required", "requires a certificate of the client: WithCertificateFiles (PALIMPSEST_CERTIFICATE_FILE, PALIMPSEST_KEY_FILE)"},
	{"error reading server preface", "closed the connection: it may be stopping, may require TLS (grpcs://HOST:PORT), or a certificate of the client (PALIMPSEST_CERTIFICATE_FILE, PALIMPSEST_KEY_FILE)"},
}

// withoutDetails words an error that gRPC itself, or a proxy, made.
func withoutDetails(known *Error, address string) {
	switch known.code {
	case codes.Unavailable:
		said := known.message
		known.unreached = true
		known.message = fmt.Sprintf("cannot reach Palimpsest at %s; start it with `palimpsest up`, or name the address where it listens (PALIMPSEST_ADDRESS)", address)
		for _, one := range handshakes {
			if strings.Contains(said, one.sign) {
				known.message = address + " " + one.message
				return
			}
		}
	case codes.DeadlineExceeded:
		known.message = fmt.Sprintf("no reply from %s in time", address)
	case codes.Unimplemented:
		known.message = fmt.Sprintf("the service at %s has no such method: it is older than this client, or it is no Palimpsest", address)
	}
}
