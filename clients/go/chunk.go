package palimpsest

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

const (
	// What the service accepts as one batch: chunks, and bytes of their content.
	maxBatchChunks = 256
	maxBatchBytes  = 1 << 20
	// Bytes of a chunk, so that it fits a message together with the fields around it.
	maxChunkBytes = maxSentBytes - 1024
	// Characters of a role; entries of metadata, and characters of a key and of a value.
	maxRoleCharacters  = 64
	maxMetadataEntries = 16
	maxKeyCharacters   = 64
	maxValueCharacters = 1024
)

// Chunk is one entry of a session's log: a text, a message of a conversation where Role is set, or
// a step of an agent where Thought, Action or Observation is. [Text], [Message] and [Step] make one.
type Chunk struct {
	// Text is a piece of a document, or what was said.
	Text string
	// Role is the speaker of a message, for example "user" or "assistant".
	Role string
	// Thought, Action and Observation are the parts of an agent's step.
	Thought, Action, Observation string
	// ObservedFirst says that the observation precedes the thought and the action.
	ObservedFirst bool

	// Thread is the conversation within the session that it belongs to.
	Thread string
	// Source is the person, device, document or system that it comes from, such as "user:42".
	Source string
	// OccurredAt is when it happened, which may be long before it is appended; zero: not given.
	OccurredAt time.Time
	// Metadata has at most 16 keys and values of the program's own, which no model sees.
	Metadata map[string]string

	// Position is its place in the log, from 1 on. The fields from here on are the service's.
	Position int64
	// ProducerID and ProducerSequence are those of the producer that sent it, if one did.
	ProducerID       string
	ProducerSequence int64
	// CreatedAt is when it was committed.
	CreatedAt time.Time
	// Redacted is set for a tombstone: the content was removed.
	Redacted bool
	// Trust is how much its source is trusted now.
	Trust pb.SourceTrust

	// The number of the message that it is from, for errors; 0: not known.
	number int
}

// Content is what is appended and remembered: a [Chunk], or several as [Chunks].
type Content interface{ chunks() []Chunk }

// Chunks are several chunks, in their order.
type Chunks []Chunk

func (c Chunk) chunks() []Chunk  { return []Chunk{c} }
func (c Chunks) chunks() []Chunk { return c }

// Text returns a chunk of plain text.
func Text(text string) Chunk { return Chunk{Text: text} }

// Message returns a turn of a conversation.
func Message(role, text string) Chunk { return Chunk{Role: role, Text: text} }

// Step returns a step of an agent. Any part may be empty, not all of them.
func Step(thought, action, observation string) Chunk {
	return Chunk{Thought: thought, Action: action, Observation: observation}
}

// In returns the chunk in a thread.
func (c Chunk) In(thread string) Chunk { c.Thread = thread; return c }

// From returns the chunk with a source.
func (c Chunk) From(source string) Chunk { c.Source = source; return c }

// At returns the chunk with the time when it happened.
func (c Chunk) At(occurred time.Time) Chunk { c.OccurredAt = occurred; return c }

func (c Chunk) isStep() bool { return c.Thought != "" || c.Action != "" || c.Observation != "" }

// message returns the chunk as it is sent. name says which chunk it is, in errors.
func (c Chunk) message(name string) (*pb.Chunk, error) {
	if wrong := c.wrong(); wrong != "" {
		return nil, invalid(name, "%s", wrong)
	}
	message := &pb.Chunk{Thread: c.Thread, Source: c.Source, Metadata: maps.Clone(c.Metadata)}
	switch {
	case c.isStep():
		message.Content = &pb.Chunk_AgentStep_{AgentStep: &pb.Chunk_AgentStep{
			Thought: c.Thought, Action: c.Action, Observation: c.Observation, ObservedFirst: c.ObservedFirst,
		}}
	case c.Role != "":
		message.Content = &pb.Chunk_Message_{Message: &pb.Chunk_Message{Role: c.Role, Text: c.Text}}
	default:
		message.Content = &pb.Chunk_Text{Text: c.Text}
	}
	if !c.OccurredAt.IsZero() {
		// The service keeps microseconds, and the digest is of these.
		message.OccurredAt = timestamppb.New(c.OccurredAt.Truncate(time.Microsecond))
	}
	message.Digest = digest(message)
	return message, nil
}

// wrong returns what the service refuses whatever its limits are; empty where it accepts it. In a
// batch the service would refuse all that is sent with it.
func (c Chunk) wrong() string {
	if c.isStep() && (c.Text != "" || c.Role != "") {
		return "it is a message and a step of an agent: make two chunks of it"
	}
	if c.Text == "" && !c.isStep() {
		return "its text is empty"
	}
	if utf8.RuneCountInString(c.Role) > maxRoleCharacters {
		return fmt.Sprintf("its role must have 1 to %d characters", maxRoleCharacters)
	}
	if len(c.Metadata) > maxMetadataEntries {
		return fmt.Sprintf("it has %d entries of metadata; %d are the most", len(c.Metadata), maxMetadataEntries)
	}
	texts := []string{c.Text, c.Role, c.Thought, c.Action, c.Observation, c.Thread, c.Source}
	for key, value := range c.Metadata {
		if count := utf8.RuneCountInString(key); count < 1 || count > maxKeyCharacters {
			return fmt.Sprintf("a key of its metadata must have 1 to %d characters", maxKeyCharacters)
		}
		if utf8.RuneCountInString(value) > maxValueCharacters {
			return fmt.Sprintf("a value of its metadata must have at most %d characters", maxValueCharacters)
		}
		texts = append(texts, key, value)
	}
	for _, text := range texts {
		if strings.ContainsRune(text, 0) {
			return `it holds a NUL character; strings.ReplaceAll(text, "\x00", "") removes it`
		}
		if !utf8.ValidString(text) {
			return `it is not valid UTF-8; strings.ToValidUTF8(text, "\uFFFD") replaces what is not`
		}
	}
	return ""
}

// messages returns the chunks as they are sent.
func messages(chunks []Chunk, kind string) ([]*pb.Chunk, error) {
	made := make([]*pb.Chunk, 0, len(chunks))
	for at, chunk := range chunks {
		message, err := chunk.message(fmt.Sprintf("%s %d", kind, at+1))
		if err != nil {
			return nil, err
		}
		made = append(made, message)
	}
	return made, nil
}

// ChunkOf returns a chunk of the log from a message of the API.
func ChunkOf(message *pb.Chunk) Chunk {
	chunk := Chunk{
		Text: message.GetText(), Thread: message.GetThread(), Source: message.GetSource(),
		Metadata: message.GetMetadata(), Position: message.GetPosition(),
		ProducerID: message.GetProducerId(), ProducerSequence: message.GetProducerSequence(),
		Redacted: message.GetRedaction() != nil, Trust: message.GetTrust(),
	}
	if turn := message.GetMessage(); turn != nil {
		chunk.Role, chunk.Text = turn.GetRole(), turn.GetText()
	}
	if step := message.GetAgentStep(); step != nil {
		chunk.Thought, chunk.Action, chunk.Observation = step.GetThought(), step.GetAction(), step.GetObservation()
		chunk.ObservedFirst = step.GetObservedFirst()
	}
	if message.OccurredAt != nil {
		chunk.OccurredAt = message.OccurredAt.AsTime()
	}
	if message.CreatedAt != nil {
		chunk.CreatedAt = message.CreatedAt.AsTime()
	}
	return chunk
}

// parts returns role, text, observation, thought and action; empty where its kind has none.
func parts(chunk *pb.Chunk) [5]string {
	turn, step := chunk.GetMessage(), chunk.GetAgentStep()
	return [5]string{
		turn.GetRole(), turn.GetText() + chunk.GetText(), step.GetObservation(), step.GetThought(), step.GetAction(),
	}
}

// sizeOf returns what counts in credits: bytes of content, thread, source and metadata.
func sizeOf(chunk *pb.Chunk) int64 {
	size := len(chunk.GetThread()) + len(chunk.GetSource())
	for _, part := range parts(chunk) {
		size += len(part)
	}
	for key, value := range chunk.GetMetadata() {
		size += len(key) + len(value)
	}
	return int64(size)
}

// digest returns the SHA-256 of a chunk's content: docs/guides/appending.md#the-digest.
func digest(chunk *pb.Chunk) []byte {
	sum := sha256.New()
	switch {
	case chunk.GetAgentStep() != nil:
		addSized(sum, "step")
	case chunk.GetMessage() != nil:
		addSized(sum, "message")
	default:
		addSized(sum, "text")
	}
	for _, part := range parts(chunk) {
		addSized(sum, part)
	}
	addNumber(sum, uint64(len(chunk.GetMetadata())))
	for _, key := range slices.Sorted(maps.Keys(chunk.GetMetadata())) {
		addSized(sum, key)
		addSized(sum, chunk.GetMetadata()[key])
	}
	if chunk.GetAgentStep().GetObservedFirst() {
		sum.Write([]byte{1})
	}
	if chunk.GetThread() != "" || chunk.GetSource() != "" || chunk.OccurredAt != nil {
		sum.Write([]byte{2})
		addSized(sum, chunk.GetThread())
		addSized(sum, chunk.GetSource())
		if at := chunk.GetOccurredAt(); at != nil {
			addNumber(sum, uint64(at.GetSeconds()*1_000_000+int64(at.GetNanos())/1000))
		}
	}
	return sum.Sum(nil)
}

func addSized(sum hash.Hash, text string) {
	addNumber(sum, uint64(len(text)))
	sum.Write([]byte(text))
}

func addNumber(sum hash.Hash, number uint64) {
	sum.Write(binary.BigEndian.AppendUint64(nil, number))
}
