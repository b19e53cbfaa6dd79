package palimpsest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
)

const (
	// How long a call may take, if neither it nor the client says; and an append or a question.
	callTimeout = 30 * time.Second
	longTimeout = 60 * time.Second
	// How long to try a service that was never reached. After the first contact it may be
	// restarting, and is tried for as long as a call, a producer or a watch may take.
	reachTimeout = 2500 * time.Millisecond
	// How long producers and watches try a lost service.
	giveUpTimeout = 60 * time.Second
)

// backoff makes the pauses between the tries of a call.
type backoff struct {
	first, next time.Duration
}

const longestPause = 5 * time.Second

// newBackoff makes pauses from first on, which double up to 5 s: a longer one would end long
// after the service is back.
func newBackoff(first time.Duration) *backoff { return &backoff{first: first, next: first} }

func callBackoff() *backoff   { return newBackoff(100 * time.Millisecond) }
func streamBackoff() *backoff { return newBackoff(50 * time.Millisecond) }

func (b *backoff) restart() { b.next = b.first }

// pause returns how long to wait after an error: not less than the service asks, and with jitter,
// so that clients that were refused together do not return together.
func (b *backoff) pause(after *Error) time.Duration {
	jitter := 0.5 + rand.Float64()/2
	pause := time.Duration(float64(b.next) * jitter)
	b.next = min(b.next*2, longestPause)
	return max(pause, time.Duration(float64(after.retry)*(0.5+jitter)))
}

// isUnbegun reports whether certainly no work was done, so that any call may be repeated.
func isUnbegun(err *Error) bool {
	switch err.reason {
	case ReasonTooManyCalls, ReasonTooManyAsks, ReasonTooManyPending:
		return true
	}
	return false
}

// mayPass reports whether a call or a stream that ended with this error can be made again: the
// service is away or full, or the connection was lost. What writes has a request id or a sequence,
// so that a second try of what was done does nothing.
func mayPass(err *Error) bool {
	if err.cause != nil {
		return false
	}
	switch err.code {
	case codes.Unavailable:
		return true
	case codes.ResourceExhausted:
		return err.hasRetry
	case codes.Canceled:
		// Not by our own context: a server that stops, or a proxy, ended it without a reason.
		return err.reason == ""
	case codes.Internal:
		return err.reason == "" && strings.Contains(err.message, "RST_STREAM")
	}
	return false
}

// mayResume reports whether an answer can be resumed after a call that ended with this error.
func mayResume(err *Error) bool {
	if err.code == codes.ResourceExhausted {
		// The server is full, or the answer's budget is used up.
		return isUnbegun(err)
	}
	return mayPass(err)
}

// reach knows whether the service was ever reached, and how long to try it.
type reach struct {
	address string
	timeout time.Duration
	reached atomic.Bool
}

// failure returns the error of this package for one of gRPC's.
func (r *reach) failure(ctx context.Context, err error) *Error {
	known := fromRPC(ctx, err, r.address)
	if !known.unreached && known.cause == nil {
		r.reached.Store(true)
	} else if known.unreached && !r.reached.Load() {
		hint := fmt.Sprintf("; for a service that is starting, WithReachTimeout(time.Minute) waits longer than %v", r.timeout)
		if !strings.HasSuffix(known.message, hint) {
			return known.reworded(known.message + hint)
		}
	}
	return known
}

// tryFor returns how long to try what may take timeout: less before the first contact.
func (r *reach) tryFor(timeout time.Duration) time.Duration {
	if r.reached.Load() {
		return timeout
	}
	return min(timeout, r.timeout)
}

// sleep waits, or returns the context's error.
func sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
