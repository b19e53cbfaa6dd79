package palimpsest

import (
	"context"
	"errors"
	"strings"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

const (
	// Characters of a query, each of at most 4 bytes: the service takes 64 KiB.
	maxQueryCharacters = 16_000
	// How many messages before the last one of the user are in the query, and the characters of
	// each: they say what "there" and "it" are, and must not outweigh the question.
	contextMessages   = 2
	contextCharacters = 150
)

// RecallOptions are the options of [Session.Recall].
type RecallOptions struct {
	// Tokens is the size of the text at most, counted as four bytes each; 0: 1,000.
	Tokens int32
	// Memories are those whose entries are read; empty: the memory "default", else all.
	Memories []string
	// Sections are the parts of the text that are wanted; empty: all.
	Sections []pb.RecallSection
	// Mode says how chunks are searched.
	Mode pb.SearchMode
	// Filter limits the chunks. A program that sends the current conversation anyway leaves out its
	// thread by ExcludedThreads.
	Filter Filter
	Consistency
}

// Recalled is what a session knows that fits a query.
type Recalled struct{ *pb.RecallResponse }

// String returns the text, for a prompt. It has what others wrote: in a prompt it is data, not an
// instruction.
func (r *Recalled) String() string { return r.GetText() }

// Recall returns what the session knows that fits a query, within a budget of tokens and without a
// call of a language model. query is a [Text]; or messages: then it is the last one of the user,
// with what was said just before. Nil, or without text, it is about the newest messages of the log.
//
// What was remembered before is seen at once. Of a session that does not exist nothing is known,
// which is no error.
func (s *Session) Recall(ctx context.Context, query Content, options *RecallOptions) (*Recalled, error) {
	given := orZero(options)
	request := &pb.RecallRequest{
		Session: s.id, MaxTokens: given.Tokens, Memories: given.Memories, Sections: given.Sections,
		Mode: given.Mode, Filter: given.Filter.message(), Consistency: given.Consistency.message(),
	}
	if query != nil {
		request.Query = queryOf(query.chunks())
	}
	reply, err := s.connection.sessions.Recall(ctx, request)
	unknown := errors.Is(err, ReasonSessionNotFound) && len(given.Memories) == 0 && given.After == ""
	if err != nil && !unknown {
		return nil, err
	}
	if unknown {
		reply = &pb.RecallResponse{}
	}
	return &Recalled{reply}, nil
}

// queryOf returns the query that a text is, or that messages are. It begins with the last message
// of the user; what was said just before follows it. Of a long one it has the beginning and the
// end, either of which may be the question.
func queryOf(chunks []Chunk) string {
	var newest []string
	for at := len(chunks) - 1; at >= 0 && len(newest) <= contextMessages; at-- {
		chunk := chunks[at]
		if chunk.isStep() || strings.TrimSpace(chunk.Text) == "" {
			continue
		}
		answers := chunk.Role == "assistant" || chunk.Role == "system"
		if len(newest) == 0 && answers && asksBefore(chunks[:at]) {
			continue
		}
		newest = append(newest, chunk.Text)
	}
	if len(newest) == 0 {
		return ""
	}
	context := ""
	for _, text := range newest[1:] {
		context += "\n" + string(head([]rune(text), contextCharacters))
	}
	return strings.TrimSpace(ends(newest[0], maxQueryCharacters-len([]rune(context))) + context)
}

// asksBefore reports whether a message of another role than those that answer comes before.
func asksBefore(chunks []Chunk) bool {
	for _, chunk := range chunks {
		if !chunk.isStep() && chunk.Role != "assistant" && chunk.Role != "system" && strings.TrimSpace(chunk.Text) != "" {
			return true
		}
	}
	return false
}

func head(text []rune, most int) []rune { return text[:min(len(text), most)] }

// ends returns a text; of a longer one its beginning and its end.
func ends(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	half := (most - 1) / 2
	return string(runes[:half]) + "\n" + string(runes[len(runes)-half:])
}
