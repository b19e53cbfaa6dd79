package palimpsest

import (
	"context"
	"fmt"
	"iter"
	"time"

	"google.golang.org/grpc/codes"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// Operation is long work that goes on without its client, as it was when it was read: a rebuild, a
// consolidation, a seal, a schema that a model writes, or the removal of what was derived from
// forgotten chunks.
//
//	operation, err := memory.Rebuild(ctx, "facts-2", nil)
//	ended, err := operation.Wait(ctx)
type Operation struct {
	*pb.Operation
	connection *connection
}

// RequestOptions are the options of calls that have no others.
type RequestOptions struct {
	// RequestID makes a repeated call do nothing for 24 hours; empty: one is made for the call.
	RequestID string
}

// Operation reads an operation. It is kept for 30 days.
func (c *Client) Operation(ctx context.Context, id string) (*Operation, error) {
	return c.connection.operation(c.connection.operations.GetOperation(ctx, &pb.GetOperationRequest{Operation: id}))
}

// operation returns an operation, or the error of the call that returned it.
func (c *connection) operation(found *pb.Operation, err error) (*Operation, error) {
	if err != nil {
		return nil, err
	}
	return &Operation{found, c}, nil
}

// OperationFilter says which operations are meant. Zero values leave a condition out.
type OperationFilter struct {
	// Session and Memory are those that it is about; a memory needs its session.
	Session, Memory string
	Kind            pb.Operation_Kind
	State           pb.OperationState
}

// Operations yields the operations that match, newest first, without their results; nil: all.
func (c *Client) Operations(ctx context.Context, filter *OperationFilter) iter.Seq2[*Operation, error] {
	given := orZero(filter)
	request := &pb.ListOperationsRequest{
		Session: given.Session, Memory: given.Memory, Kind: given.Kind, State: given.State, PageSize: maxPage,
	}
	return pages(func(token string) ([]*Operation, string, error) {
		request.PageToken = token
		page, err := c.connection.operations.ListOperations(ctx, request)
		var found []*Operation
		for _, one := range page.GetOperations() {
			found = append(found, &Operation{one, c.connection})
		}
		return found, page.GetNextPageToken(), err
	})
}

// HasEnded reports whether it is done, has failed or was cancelled.
func (o *Operation) HasEnded() bool { return o.GetEndedAt() != nil }

// Wait waits until the operation has ended, and returns it with its result. One that failed, or was
// cancelled, is an error. ctx limits the wait alone: the work goes on.
func (o *Operation) Wait(ctx context.Context) (*Operation, error) {
	var newest *Operation
	for one, err := range o.Updates(ctx) {
		if err != nil {
			return newest, err
		}
		newest = one
	}
	switch failed := newest.GetError(); {
	case newest.GetState() == pb.OperationState_OPERATION_STATE_CANCELLED:
		return newest, &Error{code: codes.Canceled, message: fmt.Sprintf("operation %q was cancelled", o.GetId())}
	case failed != nil:
		return newest, errorOf(failed)
	}
	return newest, nil
}

// Updates yields the operation as it is now, and after each change until it has ended. A lost service
// is tried again for a minute.
func (o *Operation) Updates(ctx context.Context) iter.Seq2[*Operation, error] {
	return func(yield func(*Operation, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		pauses, lostAt := callBackoff(), time.Time{}
		for {
			ended, err := o.follow(ctx, func(one *Operation) bool {
				pauses.restart()
				lostAt = time.Time{}
				return yield(one, nil)
			})
			if ended {
				return
			}
			known := o.connection.reach.failure(ctx, err)
			if lostAt.IsZero() {
				lostAt = time.Now()
			}
			pause := pauses.pause(known)
			late := time.Now().Add(pause).After(lostAt.Add(o.connection.reach.tryFor(giveUpTimeout)))
			if !mayPass(known) || late || sleep(ctx, pause) != nil {
				yield(nil, known)
				return
			}
		}
	}
}

// follow yields what one call reports; true: the operation has ended, or the program leaves.
func (o *Operation) follow(ctx context.Context, yield func(*Operation) bool) (bool, error) {
	updates, err := o.connection.operations.WaitOperation(ctx, &pb.WaitOperationRequest{Operation: o.GetId()})
	if err != nil {
		return false, err
	}
	for {
		found, err := updates.Recv()
		if isEnd(err) {
			err = &Error{code: codes.Unavailable, message: "the service ended the wait without a reason"}
		}
		if err != nil {
			return false, err
		}
		one := &Operation{found, o.connection}
		if !yield(one) || one.HasEnded() {
			return true, nil
		}
	}
}

// Cancel cancels the operation if it has not ended, and returns it. A rebuild deletes its new memory; a
// consolidation or a seal leaves the memory as it is.
func (o *Operation) Cancel(ctx context.Context, options *RequestOptions) (*Operation, error) {
	request := &pb.CancelOperationRequest{Operation: o.GetId(), RequestId: orZero(options).RequestID}
	return o.connection.operation(o.connection.operations.CancelOperation(ctx, request))
}

// errorOf returns what ended an operation, or one of several questions.
func errorOf(message *pb.ErrorStatus) *Error {
	known := &Error{code: codes.Code(message.GetCode()), message: message.GetMessage(), metadata: message.GetMetadata()}
	if message.GetReason() != pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		known.reason = Reason(message.GetReason().String()[len("ERROR_REASON_"):])
	}
	return known
}
