// Command conformance is the driver of the Go client for the suite of clients/conformance: it reads
// a command in JSON a line, makes the call, and writes a reply.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	palimpsest "palimpsest.invalid/clients/go"
)

type object = map[string]any

// command is one line of input.
type command struct {
	ID   int64           `json:"id"`
	Call string          `json:"call"`
	Args json.RawMessage `json:"args"`
}

// unsupported is why a call cannot be made.
type unsupported string

func (u unsupported) Error() string { return string(u) }

// driver keeps the newest client, and what scripts name by handles.
type driver struct {
	mutex   sync.Mutex
	client  *palimpsest.Client
	handles map[string]any
	// The commands of a handle begin after those before them have ended.
	last map[string]chan struct{}
	out  *json.Encoder
}

func main() {
	driver := &driver{handles: map[string]any{}, last: map[string]chan struct{}{}, out: json.NewEncoder(os.Stdout)}
	driver.out.SetEscapeHTML(false)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var given command
		if err := json.Unmarshal(lines.Bytes(), &given); err != nil {
			os.Stderr.WriteString("no command: " + err.Error() + "\n")
			os.Exit(1)
		}
		if given.Call == "connect" {
			// All others are of the newest connection.
			driver.run(given)
			continue
		}
		before, done := driver.queue(given)
		go func() {
			<-before
			driver.run(given)
			close(done)
		}()
	}
	// What is under way ends with the program, as with any that is left.
}

// queue returns what is closed when the commands before one of the same handle have ended, and what
// is to be closed when it has ended itself.
func (d *driver) queue(given command) (before, done chan struct{}) {
	handle := arguments(given.Args).Handle
	before, done = d.last[handle], make(chan struct{})
	if before == nil || handle == "" || strings.HasPrefix(given.Call, "close_") {
		before = make(chan struct{})
		close(before)
	}
	d.last[handle] = done
	return before, done
}

func (d *driver) run(given command) {
	args := arguments(given.Args)
	ctx, cancel := context.Background(), func() {}
	if args.Timeout != nil {
		ctx, cancel = context.WithTimeout(ctx, seconds(*args.Timeout))
	}
	reply := object{"id": given.ID}
	if call, known := calls[given.Call]; !known {
		reply["unsupported"] = "the driver has no call " + given.Call
	} else if result, err := call(ctx, d, args); err == nil {
		reply["result"] = result
	} else if why := unsupported(""); errors.As(err, &why) {
		reply["unsupported"] = string(why)
	} else {
		reply["error"] = errorOf(err)
	}
	cancel()
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if err := d.out.Encode(reply); err != nil {
		os.Exit(1)
	}
}

func seconds(count float64) time.Duration { return time.Duration(count * float64(time.Second)) }

var names = map[codes.Code]string{
	codes.Canceled: "CANCELLED", codes.InvalidArgument: "INVALID_ARGUMENT", codes.DeadlineExceeded: "DEADLINE_EXCEEDED",
	codes.NotFound: "NOT_FOUND", codes.AlreadyExists: "ALREADY_EXISTS", codes.PermissionDenied: "PERMISSION_DENIED",
	codes.ResourceExhausted: "RESOURCE_EXHAUSTED", codes.FailedPrecondition: "FAILED_PRECONDITION", codes.Aborted: "ABORTED",
	codes.OutOfRange: "OUT_OF_RANGE", codes.Unimplemented: "UNIMPLEMENTED", codes.Internal: "INTERNAL",
	codes.Unavailable: "UNAVAILABLE", codes.Unauthenticated: "UNAUTHENTICATED", codes.Unknown: "UNKNOWN",
}

// errorOf returns an error as a program of Go sees it. What is none of the client's own is an
// argument that it refuses.
func errorOf(err error) object {
	var known *palimpsest.Error
	if !errors.As(err, &known) {
		return object{
			"type": "error", "code": "INVALID_ARGUMENT", "reason": "", "message": err.Error(),
			"metadata": object{}, "fields": object{}, "retry_seconds": nil,
		}
	}
	reply := object{
		"type": status.Code(err).String(), "code": names[known.Code()], "reason": string(known.Reason()), "message": err.Error(),
		"metadata": orEmpty(known.Metadata()), "fields": orEmpty(known.Fields()), "retry_seconds": nil,
	}
	if after, given := known.RetryAfter(); given {
		reply["retry_seconds"] = after.Seconds()
	}
	return reply
}

func orEmpty(given map[string]string) map[string]string {
	if given == nil {
		return map[string]string{}
	}
	return given
}
