package palimpsest

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

func TestAWaitForAnOperationContinuesAfterALostConnection(t *testing.T) {
	calls := 0
	client := serve(t, &server{wait: func(request *pb.WaitOperationRequest, stream pb.OperationService_WaitOperationServer) error {
		if calls++; calls == 1 {
			if err := stream.Send(&pb.Operation{Id: request.GetOperation()}); err != nil {
				return err
			}
			return status.Error(codes.Unavailable, "lost")
		}
		return stream.Send(&pb.Operation{Id: "o", State: pb.OperationState_OPERATION_STATE_DONE, EndedAt: timestamppb.Now()})
	}})
	operation, err := client.Operation(t.Context(), "o")
	if err != nil {
		t.Fatal(err)
	}
	ended, err := operation.Wait(t.Context())
	if err != nil || !ended.HasEnded() || calls != 2 {
		t.Error(ended, err, calls)
	}
}

func TestAnOperationThatFailedIsAnError(t *testing.T) {
	for state, wanted := range map[pb.OperationState]error{
		pb.OperationState_OPERATION_STATE_FAILED:    ReasonMemoryStalled,
		pb.OperationState_OPERATION_STATE_CANCELLED: CodeError(codes.Canceled),
	} {
		client := serve(t, &server{wait: func(_ *pb.WaitOperationRequest, stream pb.OperationService_WaitOperationServer) error {
			ended := &pb.Operation{Id: "o", State: state, EndedAt: timestamppb.Now()}
			if state == pb.OperationState_OPERATION_STATE_FAILED {
				ended.Error = &pb.ErrorStatus{
					Code: int32(codes.FailedPrecondition), Reason: pb.ErrorReason_ERROR_REASON_MEMORY_STALLED, Message: "it is stalled",
				}
			}
			return stream.Send(ended)
		}})
		operation, err := client.Operation(t.Context(), "o")
		if err != nil {
			t.Fatal(err)
		}
		if ended, err := operation.Wait(t.Context()); !errors.Is(err, wanted) || ended.GetState() != state {
			t.Error(ended, err)
		}
	}
}

func TestAKeyIsNotCreatedTwice(t *testing.T) {
	calls := 0
	client := serve(t, &server{createKey: func(*pb.CreateApiKeyRequest) (*pb.CreateApiKeyResponse, error) {
		calls++
		return nil, status.Error(codes.Unavailable, "the reply is lost")
	}})
	if _, err := client.Access().CreateKey(t.Context(), []pb.Scope{pb.Scope_SCOPE_READ}, nil); !errors.Is(err, CodeError(codes.Unavailable)) || calls != 1 {
		t.Error(err, calls)
	}
	stub := pb.NewAccessServiceClient(client.Conn())
	if _, err := stub.CreateApiKey(t.Context(), &pb.CreateApiKeyRequest{}); err == nil || calls != 2 {
		t.Error(err, calls)
	}
}

func TestManyQuestionsContinueEachAfterALostConnection(t *testing.T) {
	indexed := func(at int32, event *pb.AskEvent) *pb.AskEvent { event.Index = at; return event }
	answered := func(text string) *pb.AskEvent {
		return &pb.AskEvent{Event: &pb.AskEvent_Answer{Answer: &pb.Answer{Text: text}}}
	}
	client := serve(t, &server{
		askMany: func(_ *pb.AskManyRequest, stream pb.AnswerService_AskManyServer) error {
			failed := &pb.ErrorStatus{Code: int32(codes.ResourceExhausted), Reason: pb.ErrorReason_ERROR_REASON_BUDGET_EXHAUSTED}
			for _, event := range []*pb.AskEvent{
				indexed(2, reading()), indexed(0, reading()), indexed(2, answered("third")),
				indexed(1, &pb.AskEvent{Event: &pb.AskEvent_Error{Error: failed}}),
			} {
				if err := stream.Send(event); err != nil {
					return err
				}
			}
			return status.Error(codes.Unavailable, "lost")
		},
		resume: func(_ *pb.ResumeAnswerRequest, stream pb.AnswerService_ResumeAnswerServer) error {
			return stream.Send(answered("first"))
		},
	})
	ended, err := client.Session("s").AskAll(t.Context(), []string{"a", "b", "c", "d"}, nil)
	if err != nil || len(ended) != 4 {
		t.Fatal(ended, err)
	}
	if ended[0].Answer.String() != "first" || !errors.Is(ended[1].Err, ReasonBudgetExhausted) || ended[2].Answer.String() != "third" || !errors.Is(ended[3].Err, CodeError(codes.Unavailable)) {
		t.Errorf("%+v", ended)
	}
}
