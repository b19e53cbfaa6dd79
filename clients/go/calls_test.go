package palimpsest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

func TestACallIsRepeatedUnderOneRequestID(t *testing.T) {
	var ids []string
	client := serve(t, &server{createSession: func(request *pb.CreateSessionRequest) (*pb.Session, error) {
		ids = append(ids, request.GetRequestId())
		switch len(ids) {
		case 1:
			return nil, refusal(codes.Unavailable, ReasonServerStopping, nil, soon())
		case 2:
			return nil, status.Error(codes.Canceled, "")
		case 3:
			return nil, refusal(codes.ResourceExhausted, ReasonTooManyCalls, nil, soon())
		}
		return request.GetSession(), nil
	}})
	if _, err := client.CreateSession(t.Context(), "s", nil); err != nil {
		t.Fatal(err)
	}
	if len(ids) != 4 || ids[0] == "" || ids[0] != ids[1] || ids[0] != ids[3] {
		t.Error(ids)
	}
	// A second call is another request, and one with an id of its own keeps that.
	request := &pb.CreateSessionRequest{Session: &pb.Session{Id: "s"}}
	stub := pb.NewSessionServiceClient(client.Conn())
	if _, err := stub.CreateSession(t.Context(), request); err != nil || request.RequestId != "" || ids[4] == ids[0] {
		t.Error(err, request, ids)
	}
	request.RequestId = "mine"
	if _, err := stub.CreateSession(t.Context(), request); err != nil || ids[5] != "mine" {
		t.Error(err, ids)
	}
}

func TestWhatCannotPassIsNotRepeated(t *testing.T) {
	for _, refused := range []error{
		refusal(codes.NotFound, ReasonSessionNotFound, map[string]string{"session": "s"}),
		refusal(codes.ResourceExhausted, ReasonBudgetExhausted, nil),
		refusal(codes.Aborted, ReasonBeingDeleted, nil),
		refusal(codes.Internal, ReasonInternal, nil),
	} {
		calls := 0
		client := serve(t, &server{createSession: func(*pb.CreateSessionRequest) (*pb.Session, error) {
			calls++
			return nil, refused
		}})
		_, err := client.CreateSession(t.Context(), "s", nil)
		if status.Code(err) != status.Code(refused) || calls != 1 || asError(err).Retryable() {
			t.Error(err, calls)
		}
	}
}

func TestADeadlineEndsTheTries(t *testing.T) {
	client := serve(t, &server{createSession: func(*pb.CreateSessionRequest) (*pb.Session, error) {
		return nil, refusal(codes.Unavailable, ReasonDatabaseUnavailable, nil, soon())
	}})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := client.CreateSession(ctx, "s", nil)
	// The last refusal says more than that the time is up.
	if !errors.Is(err, ReasonDatabaseUnavailable) {
		t.Error(err)
	}
}

func TestAContextThatEndsIsItsError(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	defer close(leave)
	client := serve(t, &server{createSession: func(*pb.CreateSessionRequest) (*pb.Session, error) {
		close(entered)
		<-leave
		return nil, nil
	}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-entered; cancel() }()
	_, err := client.CreateSession(ctx, "s", nil)
	if !errors.Is(err, context.Canceled) || asError(err).Retryable() {
		t.Error(err)
	}
}

func TestRememberCreatesTheSessionAndIsStoredOnce(t *testing.T) {
	var ids []string
	created := false
	client := serve(t, &server{
		createSession: func(*pb.CreateSessionRequest) (*pb.Session, error) { created = true; return &pb.Session{}, nil },
		append: func(request *pb.AppendRequest) (*pb.AppendResponse, error) {
			ids = append(ids, request.GetRequestId())
			if !created {
				return nil, refusal(codes.NotFound, ReasonSessionNotFound, nil)
			}
			if len(ids) == 2 {
				return nil, status.Error(codes.Unavailable, "the reply is lost")
			}
			return &pb.AppendResponse{Positions: &pb.PositionRange{First: 1, Last: 1}, ReadToken: "token"}, nil
		},
	})
	found, err := client.Session("s").Remember(t.Context(), Chunks{Message("system", "Be brief."), Message("user", "Hi."), Message("assistant", " ")}, nil)
	if err != nil || found.Chunks != 1 || found.Skipped != 2 || found.Positions != (Positions{1, 1}) || found.RequestID == "" {
		t.Fatal(found, err)
	}
	if fmt.Sprint(ids) != fmt.Sprint([]string{ids[0], ids[0], ids[0]}) {
		t.Error(ids)
	}
}

func text(ordinal int32, said string) *pb.AskEvent {
	return &pb.AskEvent{Event: &pb.AskEvent_Text_{Text: &pb.AskEvent_Text{Ordinal: ordinal, Text: said}}}
}

func reading() *pb.AskEvent {
	return &pb.AskEvent{Event: &pb.AskEvent_Reading_{Reading: &pb.AskEvent_Reading{Answer: "a"}}}
}

func TestAQuestionContinuesAfterALostConnection(t *testing.T) {
	var resumed []string
	client := serve(t, &server{
		ask: func(request *pb.AskRequest, stream pb.AnswerService_AskServer) error {
			for _, event := range []*pb.AskEvent{reading(), text(1, "It is "), text(2, "closed ")} {
				if err := stream.Send(event); err != nil {
					return err
				}
			}
			return status.Error(codes.Unavailable, "lost")
		},
		resume: func(request *pb.ResumeAnswerRequest, stream pb.AnswerService_ResumeAnswerServer) error {
			resumed = append(resumed, fmt.Sprint(request.GetAnswer(), request.GetAfterEvent(), request.GetAfterText()))
			if len(resumed) == 1 {
				return status.Error(codes.Canceled, "")
			}
			answer := &pb.AskEvent{Event: &pb.AskEvent_Answer{Answer: &pb.Answer{Id: "a", Text: "It is closed today."}}}
			for _, event := range []*pb.AskEvent{reading(), text(2, "closed "), text(3, "today."), answer} {
				if err := stream.Send(event); err != nil {
					return err
				}
			}
			return nil
		},
	})
	said, last := "", ""
	for event, err := range client.Session("s").StreamAsk(t.Context(), "When?", nil) {
		if err != nil {
			t.Fatal(err)
		}
		said += event.GetText().GetText()
		last = event.GetAnswer().GetText()
	}
	if said != "It is closed today." || last != said || fmt.Sprint(resumed) != "[a0 2 a0 2]" {
		t.Error(said, last, resumed)
	}
}

func TestAQuestionThatMayBeStoredIsNotAskedTwice(t *testing.T) {
	asked := 0
	client := serve(t, &server{ask: func(*pb.AskRequest, pb.AnswerService_AskServer) error {
		if asked++; asked == 1 {
			return refusal(codes.ResourceExhausted, ReasonTooManyAsks, nil, soon())
		}
		return status.Error(codes.Unavailable, "lost")
	}})
	if _, err := client.Session("s").Ask(t.Context(), "When?", nil); !errors.Is(err, CodeError(codes.Unavailable)) || asked != 2 {
		t.Error(err, asked)
	}
}

func TestLeavingAStreamEndsItsCall(t *testing.T) {
	ended := make(chan struct{})
	client := serve(t, &server{ask: func(_ *pb.AskRequest, stream pb.AnswerService_AskServer) error {
		defer close(ended)
		if err := stream.Send(reading()); err != nil {
			return err
		}
		<-stream.Context().Done()
		return nil
	}})
	for range client.Session("s").StreamAsk(t.Context(), "When?", nil) {
		break
	}
	<-ended
}

func TestAWatchContinuesAfterItsLastEvent(t *testing.T) {
	opened := atomic.Int32{}
	var starts []string
	client := serve(t, &server{watch: func(request *pb.WatchMemoryRequest, stream pb.MemoryService_WatchMemoryServer) error {
		starts = append(starts, request.GetResumeToken())
		first := int64(opened.Add(1))
		events := []*pb.WatchMemoryResponse{
			{ResumeToken: fmt.Sprint("begun ", first)},
			{ResumeToken: fmt.Sprint("at ", first), Revision: &pb.Revision{Revision: first}},
		}
		for _, event := range events {
			if err := stream.Send(event); err != nil {
				return err
			}
		}
		return status.Error(codes.Unavailable, "lost")
	}})
	watch, err := client.Session("s").Memory("m").Watch(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for wanted := range int64(3) {
		event, err := watch.Next()
		if err != nil || event.GetRevision().GetRevision() != wanted+1 {
			t.Fatal(event, err)
		}
	}
	if fmt.Sprintf("%q", starts) != `["" "at 1" "at 2"]` || watch.ResumeToken() != "at 3" {
		t.Errorf("%q %q", starts, watch.ResumeToken())
	}
	watch.Close()
	if _, err := watch.Next(); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestAnAddressWithoutAServiceIsAnErrorSoon(t *testing.T) {
	client, err := Connect(t.Context(), WithAddress("grpc://127.0.0.1:1"), WithReachTimeout(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_, err = client.Session("s").Get(t.Context())
	if !errors.Is(err, CodeError(codes.Unavailable)) || asError(err).Reason() != "" {
		t.Error(err)
	}
}

func TestTheProgramsOwnInterceptorsAreKept(t *testing.T) {
	seen := 0
	own := func(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		seen++
		return invoke(ctx, method, request, reply, cc, options...)
	}
	client := serve(t, &server{createSession: func(*pb.CreateSessionRequest) (*pb.Session, error) { return &pb.Session{}, nil }},
		WithDialOptions(grpc.WithUnaryInterceptor(own)))
	// Options that are given later do not take the place of those before.
	if _, err := client.CreateSession(t.Context(), "s", nil); err != nil || seen != 1 {
		t.Error(err, seen)
	}
}
