package palimpsest

import (
	"context"
	"fmt"
	"iter"
	"sync"

	"google.golang.org/grpc/codes"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// maxQuestions is how many questions one call has, and how many are resumed at once.
const maxQuestions = 32

// Answered is how one of several questions ended.
type Answered struct {
	Answer *Answer
	// Err is why there is none.
	Err error
}

// AskAll asks many questions, 32 at once, with the same options, and returns how each of them ended, in
// their order. One that fails does not end the others. 32 are stored together, or none of them when one
// is invalid, which is the error of the call. Without a deadline of ctx, 32 take 60 seconds at most.
func (s *Session) AskAll(ctx context.Context, queries []string, options *AskOptions) ([]Answered, error) {
	var ended []Answered
	for len(queries) > 0 {
		count := min(len(queries), maxQuestions)
		part, err := s.askSome(ctx, queries[:count], orZero(options))
		if err != nil {
			return ended, err
		}
		ended, queries = append(ended, part...), queries[count:]
	}
	return ended, nil
}

// AskAll asks the memory: [Session.AskAll].
func (m *Memory) AskAll(ctx context.Context, queries []string, options *AskOptions) ([]Answered, error) {
	return m.session.AskAll(ctx, queries, m.options(options))
}

func (s *Session) askSome(ctx context.Context, queries []string, options AskOptions) ([]Answered, error) {
	ctx, cancel := s.connection.withDeadline(ctx, longTimeout)
	defer cancel()
	request := &pb.AskManyRequest{}
	for _, query := range queries {
		question, err := options.request(s.id, query)
		if err != nil {
			return nil, err
		}
		request.Questions = append(request.Questions, question)
	}
	known, ended := make([]*listening, len(queries)), make([]Answered, len(queries))
	for at := range known {
		known[at] = newListening(s)
	}
	lost := s.listenToAll(ctx, request, known, ended)
	begun := 0
	for at := range ended {
		if ended[at] != (Answered{}) || known[at].answer != "" {
			begun++
		}
	}
	if lost != nil && begun == 0 {
		// Refused as a whole, or it is unknown whether it was accepted.
		return nil, lost
	}
	var resuming sync.WaitGroup
	for at := range ended {
		switch {
		case ended[at] != (Answered{}):
		case known[at].answer == "":
			ended[at].Err = lost
		default:
			resuming.Go(func() {
				ended[at].Answer, ended[at].Err = lastOf(func(yield func(*pb.AskEvent, error) bool) { known[at].follow(ctx, nil, yield) })
			})
		}
	}
	resuming.Wait()
	return ended, nil
}

// listenToAll follows one call of all questions to its end, and notes what it says about each.
func (s *Session) listenToAll(ctx context.Context, request *pb.AskManyRequest, known []*listening, ended []Answered) error {
	pauses := callBackoff()
	for {
		err := s.listenOnce(ctx, request, known, ended)
		failed := asError(err)
		if failed == nil || !isUnbegun(failed) || sleep(ctx, pauses.pause(failed)) != nil {
			return err
		}
	}
}

func (s *Session) listenOnce(ctx context.Context, request *pb.AskManyRequest, known []*listening, ended []Answered) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := s.connection.answers.AskMany(ctx, request)
	if err != nil {
		return s.connection.reach.failure(ctx, err)
	}
	missing := len(ended)
	for {
		event, err := events.Recv()
		switch at := int(event.GetIndex()); {
		case isEnd(err) && missing == 0:
			return nil
		case isEnd(err):
			return &Error{code: codes.Internal, message: "the service ended the call without all answers"}
		case err != nil:
			return s.connection.reach.failure(ctx, err)
		case at < 0 || at >= len(ended):
			return fmt.Errorf("the service has answered question %d of %d", at, len(ended))
		case event.GetError() != nil:
			ended[at].Err = errorOf(event.GetError())
			missing--
		case known[at].isNew(event) && event.GetAnswer() != nil:
			ended[at].Answer = &Answer{event.GetAnswer()}
			missing--
		}
	}
}

// AnswerFilter says which answers are meant. Zero values leave a condition out.
type AnswerFilter struct {
	Memory string
	State  pb.OperationState
}

// Answers yields the stored answers that match, newest first; nil: all.
func (s *Session) Answers(ctx context.Context, filter *AnswerFilter) iter.Seq2[*Answer, error] {
	given := orZero(filter)
	request := &pb.ListAnswersRequest{Session: s.id, Memory: given.Memory, State: given.State, PageSize: maxPage}
	return pages(func(token string) ([]*Answer, string, error) {
		request.PageToken = token
		page, err := s.connection.answers.ListAnswers(ctx, request)
		var found []*Answer
		for _, one := range page.GetAnswers() {
			found = append(found, &Answer{one})
		}
		return found, page.GetNextPageToken(), err
	})
}

// DeleteAnswer deletes an answer; its usage stays.
func (s *Session) DeleteAnswer(ctx context.Context, id string, options *DeleteOptions) error {
	given := orZero(options)
	_, err := s.connection.answers.DeleteAnswer(ctx, &pb.DeleteAnswerRequest{
		Session: s.id, Answer: id, AllowMissing: given.MissingOK, RequestId: given.RequestID,
	})
	return err
}

// RateAnswer rates an answer that is done, and returns it. The last rating counts.
func (s *Session) RateAnswer(ctx context.Context, id string, rating *pb.Rating, options *RequestOptions) (*Answer, error) {
	found, err := s.connection.answers.RateAnswer(ctx, &pb.RateAnswerRequest{
		Session: s.id, Answer: id, Rating: rating, RequestId: orZero(options).RequestID,
	})
	if err != nil {
		return nil, err
	}
	return &Answer{found}, nil
}

// Trajectory yields what the reader of an answer did, in order.
func (s *Session) Trajectory(ctx context.Context, id string) iter.Seq2[*pb.TrajectoryEvent, error] {
	request := &pb.ListTrajectoryEventsRequest{Session: s.id, Answer: id, PageSize: maxPage}
	return pages(func(token string) ([]*pb.TrajectoryEvent, string, error) {
		request.PageToken = token
		page, err := s.connection.answers.ListTrajectoryEvents(ctx, request)
		return page.GetEvents(), page.GetNextPageToken(), err
	})
}
