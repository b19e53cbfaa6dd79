package palimpsest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"google.golang.org/grpc/codes"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

const (
	// Characters of a piece of plain text: few enough for precise citations, and enough for a step
	// to read; and of a message or a part of a step.
	textCharacters    = 2000
	messageCharacters = 8000
	// Bytes of a thread or a source.
	maxIDBytes = 256
)

// RememberOptions are the options of [Session.Remember].
type RememberOptions struct {
	// Thread, Source, OccurredAt and Metadata are those of all chunks that have none of their own.
	Thread, Source string
	OccurredAt     time.Time
	Metadata       map[string]string
	// IncludeSystem also keeps messages of the roles "system" and "developer", which are the
	// program's and not the user's.
	IncludeSystem bool
	// RequestID is an id of the turn, if the program itself may repeat the call: the same content
	// under the same id is stored once for ever. Empty: one is made for the call.
	RequestID string
	// Wait also waits, within the same deadline, until all memories of the session have read it.
	Wait bool
}

// Remembered is what [Session.Remember] stored.
type Remembered struct {
	// Positions are where it is; zero where nothing was kept.
	Positions Positions
	// ReadToken makes a read see it applied: [Consistency].
	ReadToken string
	// RequestID is that of the call.
	RequestID string
	// Chunks is the number of chunks, Skipped that of what was left out: messages without text, and
	// instructions of the program.
	Chunks, Skipped int
}

// Remember stores texts, messages and steps, and creates the session if it is missing. All is
// durable when it returns, and stored once, however often the call has to be tried. Long texts
// become several chunks. Each call stores what it is given: pass only what is new.
//
// Errors name the item, from 1, before anything is sent. After others something may be stored: the
// metadata has the "request_id" to continue with. Errors of waiting say that all is stored.
func (s *Session) Remember(ctx context.Context, content Content, options *RememberOptions) (*Remembered, error) {
	given := orZero(options)
	ctx, cancel := s.connection.withDeadline(ctx, longTimeout)
	defer cancel()
	chunks, skipped, err := conversation(content.chunks(), given)
	if err != nil {
		return nil, err
	}
	if given.RequestID == "" {
		given.RequestID = newRequestID()
	}
	requests := appendRequests(s.id, chunks, given.RequestID)
	done := &Remembered{Chunks: len(chunks), Skipped: skipped}
	stored := 0
	for _, request := range requests {
		reply, err := s.appendOrCreate(ctx, request)
		if err != nil {
			return nil, storedInPart(err, given.RequestID, stored, len(chunks))
		}
		stored += len(request.Chunks)
		if done.Positions.First == 0 {
			done.Positions.First = reply.GetPositions().GetFirst()
		}
		done.Positions.Last = reply.GetPositions().GetLast()
		done.ReadToken, done.RequestID = reply.GetReadToken(), given.RequestID
	}
	if given.Wait && stored > 0 {
		if err := s.waitForMemories(ctx, done.ReadToken); err != nil {
			return done, storedUnread(err, done)
		}
	}
	return done, nil
}

// conversation returns the chunks as they are sent, and how many items are left out.
func conversation(items []Chunk, given RememberOptions) ([]*pb.Chunk, int, error) {
	if len(items) == 0 || len(items) == 1 && items[0].Text == "" && items[0].Role == "" && !items[0].isStep() {
		return nil, 0, invalid("content", "there is nothing to remember: give a text or at least one message")
	}
	var made []*pb.Chunk
	skipped := 0
	for at, item := range items {
		name := fmt.Sprintf("message %d", cmp.Or(item.number, at+1))
		labelled(&item, given)
		for field, id := range map[string]string{"thread": item.Thread, "source": item.Source} {
			if id != "" && !isID(id) {
				return nil, 0, invalid(name, "its %s %q is no id: it must be printable, without a slash and without blanks at its ends, and have at most %d bytes", field, id, maxIDBytes)
			}
		}
		instruction := item.Role == "system" || item.Role == "developer"
		pieces := pieces(item)
		if len(pieces) == 0 || instruction && !given.IncludeSystem {
			skipped++
		} else {
			for _, piece := range pieces {
				message, err := piece.message(name)
				if err != nil {
					return nil, 0, err
				}
				made = append(made, message)
			}
		}
	}
	return made, skipped, nil
}

// labelled gives a chunk the labels of all that it lacks.
func labelled(item *Chunk, given RememberOptions) {
	if item.Thread == "" {
		item.Thread = given.Thread
	}
	if item.Source == "" {
		item.Source = given.Source
	}
	if item.OccurredAt.IsZero() {
		item.OccurredAt = given.OccurredAt
	}
	if len(given.Metadata) > 0 {
		whole := map[string]string{}
		for _, some := range []map[string]string{given.Metadata, item.Metadata} {
			for key, value := range some {
				whole[key] = value
			}
		}
		item.Metadata = whole
	}
}

// isID reports whether the service takes it as an id.
func isID(id string) bool {
	if id == "." || id == ".." || strings.Contains(id, "/") || id != strings.TrimSpace(id) || len(id) > maxIDBytes {
		return false
	}
	return !strings.ContainsFunc(id, func(one rune) bool {
		joiner := one == '\u200c' || one == '\u200d'
		return !joiner && unicode.In(one, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
	})
}

// pieces returns what a chunk becomes: nothing without text, several where it is long.
func pieces(item Chunk) []Chunk {
	var made []Chunk
	if !item.isStep() {
		limit := textCharacters
		if item.Role != "" {
			limit = messageCharacters
		}
		for _, text := range split(item.Text, limit) {
			piece := item
			piece.Text = text
			made = append(made, piece)
		}
		return made
	}
	step := item
	step.Thought, step.Action, step.Observation = "", "", ""
	last := step
	// In the order of reading: a part that has a second piece begins a further step.
	part := func(text string, field func(*Chunk) *string) {
		for _, piece := range split(text, messageCharacters) {
			if *field(&last) != "" {
				made = append(made, last)
				last = step
			}
			*field(&last) = piece
		}
	}
	observation := func(c *Chunk) *string { return &c.Observation }
	if item.ObservedFirst {
		part(item.Observation, observation)
	}
	part(item.Thought, func(c *Chunk) *string { return &c.Thought })
	part(item.Action, func(c *Chunk) *string { return &c.Action })
	if !item.ObservedFirst {
		part(item.Observation, observation)
	}
	if last.isStep() {
		made = append(made, last)
	}
	return made
}

// split cuts a text into pieces of at most limit characters, after blank lines, lines or words.
// Together they are the text, but for white space at its ends. A short text stays as it is; of one
// without anything but white space nothing remains.
func split(text string, limit int) []string {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	if len(text) <= limit || len([]rune(text)) <= limit {
		return []string{text}
	}
	var made []string
	rest := []rune(strings.TrimSpace(strings.ReplaceAll(text, "\r\n", "\n")))
	for len(rest) > 0 {
		end := cut(rest, limit)
		if piece := string(rest[:end]); strings.TrimSpace(piece) != "" {
			made = append(made, piece)
		}
		rest = rest[end:]
	}
	return made
}

func cut(rest []rune, limit int) int {
	if limit >= len(rest) {
		return len(rest)
	}
	// A cut in the first half would leave needlessly small chunks.
	half := string(rest[limit/2 : limit])
	for _, border := range []string{"\n\n", "\n", " "} {
		if at := strings.LastIndex(half, border); at >= 0 {
			return limit/2 + len([]rune(half[:at+len(border)]))
		}
	}
	return limit
}

// appendRequests returns the requests that append the chunks in order, each within the service's
// limits. The first has the id of the call, the others ids that are derived from it: what is
// remembered again under the same id is divided in the same way, so that each part is stored once.
func appendRequests(session string, chunks []*pb.Chunk, id string) []*pb.AppendRequest {
	var requests []*pb.AppendRequest
	var last *pb.AppendRequest
	room := int64(0)
	for _, chunk := range chunks {
		size := sizeOf(chunk)
		if last == nil || size > room || len(last.Chunks) == maxBatchChunks {
			part := id
			if last != nil {
				sum := sha256.Sum256(fmt.Appendf(nil, "remember\x00%s\x00%d", id, len(requests)+1))
				part = hex.EncodeToString(sum[:])
			}
			last = &pb.AppendRequest{Session: session, RequestId: part}
			requests = append(requests, last)
			room = maxBatchBytes
		}
		last.Chunks = append(last.Chunks, chunk)
		room -= size
	}
	return requests
}

func (s *Session) appendOrCreate(ctx context.Context, request *pb.AppendRequest) (*pb.AppendResponse, error) {
	reply, err := s.connection.sessions.Append(ctx, request)
	if !errors.Is(err, ReasonSessionNotFound) {
		return reply, err
	}
	pauses := callBackoff()
	for {
		err := s.create(ctx, SessionOptions{ExistOK: true})
		if err == nil {
			return s.connection.sessions.Append(ctx, request)
		}
		// The rows of a deleted session of this id are still being removed.
		if !errors.Is(err, ReasonBeingDeleted) {
			return nil, err
		}
		pause := pauses.pause(asError(err))
		if until, ok := ctx.Deadline(); ok && time.Now().Add(pause).After(until) || sleep(ctx, pause) != nil {
			return nil, err
		}
	}
}

// waitForMemories waits until each memory has read what the token stands for. One that cannot does
// not end the wait for the others; its error is returned.
func (s *Session) waitForMemories(ctx context.Context, token string) error {
	waited, err := Collect(s.Memories(ctx))
	if err != nil {
		return err
	}
	var first error
	for _, memory := range waited {
		if memory.GetStatus() == pb.Memory_STATUS_SEALED {
			continue
		}
		_, err := s.connection.memories.GetMemory(ctx, &pb.GetMemoryRequest{
			Session: s.id, Memory: memory.GetId(), Consistency: Consistency{After: token}.message(),
		})
		readsNoMore := errors.Is(err, ReasonMemoryNotFound) || errors.Is(err, ReasonMemorySealed)
		if err != nil && !readsNoMore && first == nil {
			first = err
		}
	}
	return first
}

// isRefusal reports whether a request has certainly stored nothing. After other errors one of its
// tries may have been stored without a reply.
func isRefusal(err *Error) bool {
	switch err.code {
	case codes.Aborted, codes.AlreadyExists, codes.FailedPrecondition, codes.InvalidArgument, codes.NotFound,
		codes.Unauthenticated, codes.PermissionDenied:
		return true
	}
	return false
}

func storedInPart(err error, id string, stored, total int) error {
	known := asError(err)
	switch {
	case known == nil:
		return err
	case !isRefusal(known):
		return known.reworded(fmt.Sprintf("%v; %d of %d chunks are stored for certain: pass the same content again with RequestID %q, which stores the rest, and nothing twice", known, stored, total, id), "request_id", id, "stored_chunks", fmt.Sprint(stored))
	case stored > 0:
		return known.reworded(fmt.Sprintf("%v; %d of %d chunks had been stored before", known, stored, total), "request_id", id, "stored_chunks", fmt.Sprint(stored))
	}
	return known
}

func storedUnread(err error, done *Remembered) error {
	known := asError(err)
	if known == nil {
		return err
	}
	later := "memories will read it"
	if known.reason == ReasonMemoryStalled {
		later = "this memory reads it once it is retried"
	}
	return known.reworded(fmt.Sprintf("%v. Everything is stored all the same, up to position %d, and %s: do not pass it again", known, done.Positions.Last, later), "request_id", done.RequestID, "read_token", done.ReadToken)
}
