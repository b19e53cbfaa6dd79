package palimpsest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// MessagesFrom returns messages in the form of OpenAI's and Anthropic's APIs as chunks, for
// [Session.Remember] and [Session.Recall]. messages is one or several: the values of their Go clients,
// maps, or JSON as a [json.RawMessage].
//
// A call of a tool and its result become one step of an agent, whose thought is what the model said
// before. Images, audio and files are refused by the number of their message. A message's "name" is
// its source; it may also have "thread", "source", "occurred_at" and "metadata".
func MessagesFrom(messages any) (Chunks, error) {
	raw, err := json.Marshal(messages)
	if err != nil {
		return nil, invalid("messages", "they are no JSON: %v", err)
	}
	return ParseMessages(raw)
}

// ParseMessages is [MessagesFrom] of JSON.
func ParseMessages(raw []byte) (Chunks, error) {
	items := []json.RawMessage{raw}
	if bytes.HasPrefix(bytes.TrimSpace(raw), []byte("[")) {
		if err := json.Unmarshal(raw, &items); err != nil {
			return nil, invalid("messages", "they are no JSON")
		}
	}
	reader := &conversationReader{}
	for at, item := range items {
		if err := reader.read(item, at+1); err != nil {
			return nil, invalid(fmt.Sprintf("message %d", at+1), "%v", err)
		}
	}
	return reader.made, nil
}

// chatMessage is what is read of a message, an item beside messages, or a block of a content.
type chatMessage struct {
	Type      string          `json:"type"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	Text      *string         `json:"text"`
	Thinking  string          `json:"thinking"`
	Refusal   string          `json:"refusal"`
	Reasoning string          `json:"reasoning_content"`

	ToolCalls  []json.RawMessage `json:"tool_calls"`
	ToolCallID string            `json:"tool_call_id"`
	ToolUseID  string            `json:"tool_use_id"`
	CallID     string            `json:"call_id"`
	ID         string            `json:"id"`
	Name       string            `json:"name"`
	Output     json.RawMessage   `json:"output"`
	IsError    bool              `json:"is_error"`
	Audio      json.RawMessage   `json:"audio"`

	Thought     string `json:"thought"`
	Action      string `json:"action"`
	Observation string `json:"observation"`

	Thread     string            `json:"thread"`
	Source     string            `json:"source"`
	OccurredAt time.Time         `json:"occurred_at"`
	Metadata   map[string]string `json:"metadata"`
}

// toolCall is a call of a tool, in one of its forms.
type toolCall struct {
	ID        string          `json:"id"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
	Input     json.RawMessage `json:"input"`
	Function  *toolCall       `json:"function"`
	Custom    *toolCall       `json:"custom"`
}

// conversationReader reads messages one after the other.
type conversationReader struct {
	made Chunks
	// Places of steps whose call has no result yet, oldest first, by the ids of their calls.
	waiting []pendingCall
}

type pendingCall struct {
	id, name   string
	at, number int
}

// isNull reports whether a field is missing or null.
func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

func (r *conversationReader) read(raw json.RawMessage, number int) error {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		r.made = append(r.made, Chunk{Text: text, number: number})
		return nil
	}
	var given chatMessage
	if err := json.Unmarshal(raw, &given); err != nil {
		return fmt.Errorf("it is no text and no message with role and content: %w", err)
	}
	label := Chunk{Thread: given.Thread, Source: given.Source, OccurredAt: given.OccurredAt, Metadata: given.Metadata, number: number}
	switch {
	case given.Role == "" && given.Type != "" && given.Type != "message":
		return r.block(raw, given, &turn{label: label}, true)
	case given.Role == "" && given.Text != nil:
		label.Text = *given.Text
		r.made = append(r.made, label)
		return nil
	case given.Role == "" && (given.Thought != "" || given.Action != "" || given.Observation != ""):
		label.Thought, label.Action, label.Observation = given.Thought, given.Action, given.Observation
		r.made = append(r.made, label)
		return nil
	case given.Role == "":
		return fmt.Errorf("it has no role: give a text, or a message with role and content")
	case given.Role == "tool" || given.Role == "function":
		return r.result(given, label)
	}
	if label.Source == "" {
		label.Source = given.Name
	}
	label.Role = given.Role
	return r.turn(given, label)
}

// turn collects what is said and thought in a message, until a call of a tool.
type turn struct {
	label        Chunk
	said, before []string
}

func (r *conversationReader) turn(given chatMessage, label Chunk) error {
	if !isNull(given.Audio) {
		return fmt.Errorf("audio is not remembered, only text is: put a text that describes it in its place, or leave it out")
	}
	if isNull(given.Content) && len(given.ToolCalls) == 0 && given.Refusal == "" && given.Content == nil {
		return fmt.Errorf("it has no content")
	}
	one := &turn{label: label}
	one.before = appendText(one.before, given.Reasoning)
	if err := r.content(given.Content, one); err != nil {
		return err
	}
	one.said, one.before = appendText(one.said, given.Refusal), appendText(one.before, given.Refusal)
	for _, raw := range given.ToolCalls {
		if err := r.call(raw, one); err != nil {
			return err
		}
	}
	label.Text = strings.Join(one.said, "\n")
	if label.Text != "" || len(given.ToolCalls) == 0 {
		r.made = append(r.made, label)
	}
	return nil
}

func appendText(texts []string, text string) []string {
	if text == "" {
		return texts
	}
	return append(texts, text)
}

// content reads a text, or a list of parts.
func (r *conversationReader) content(raw json.RawMessage, one *turn) error {
	var text string
	if isNull(raw) {
		return nil
	}
	if json.Unmarshal(raw, &text) == nil {
		one.said, one.before = appendText(one.said, text), appendText(one.before, text)
		return nil
	}
	var blocks []json.RawMessage
	if err := json.Unmarshal(raw, &blocks); err != nil {
		return fmt.Errorf("its content is no text and no list of parts")
	}
	for at, raw := range blocks {
		if json.Unmarshal(raw, &text) == nil {
			one.said, one.before = appendText(one.said, text), appendText(one.before, text)
			continue
		}
		var block chatMessage
		if err := json.Unmarshal(raw, &block); err != nil {
			return fmt.Errorf("part %d: %w", at+1, err)
		}
		if err := r.block(raw, block, one, false); err != nil {
			return fmt.Errorf("part %d: %w", at+1, err)
		}
	}
	return nil
}

// block reads a part of a content, or an item beside messages.
func (r *conversationReader) block(raw json.RawMessage, block chatMessage, one *turn, alone bool) error {
	switch kind := block.Type; {
	case kind == "text" || kind == "input_text" || kind == "output_text" || kind == "summary_text" || kind == "":
		if block.Text == nil {
			return fmt.Errorf("it has no text")
		}
		one.said, one.before = appendText(one.said, *block.Text), appendText(one.before, *block.Text)
		if alone {
			one.label.Text = *block.Text
			r.made = append(r.made, one.label)
		}
	case kind == "refusal":
		one.said = appendText(one.said, block.Refusal)
	case kind == "thinking":
		one.before = appendText(one.before, block.Thinking)
	case kind == "reasoning" || kind == "redacted_thinking":
	case strings.HasSuffix(kind, "tool_use") || strings.HasSuffix(kind, "tool_call") || kind == "function_call" || kind == "custom_tool_call":
		return r.call(raw, one)
	case strings.HasSuffix(kind, "tool_result") || strings.HasSuffix(kind, "call_output"):
		label := one.label
		label.Role, label.Text = "", ""
		return r.result(block, label)
	default:
		return fmt.Errorf("a part of type %q is not remembered, only text is: put a text that describes it in its place, or leave it out", kind)
	}
	return nil
}

// call adds a step for a call of a tool. What comes before it in its message is its thought.
func (r *conversationReader) call(raw json.RawMessage, one *turn) error {
	var given toolCall
	if err := json.Unmarshal(raw, &given); err != nil {
		return fmt.Errorf("a call of a tool cannot be read: %w", err)
	}
	called := given
	for _, inner := range []*toolCall{given.Custom, given.Function} {
		if inner != nil {
			called = *inner
		}
	}
	if called.Name == "" {
		return fmt.Errorf("a call has no name of a tool")
	}
	arguments := called.Arguments
	if isNull(arguments) {
		arguments = called.Input
	}
	written := string(arguments)
	if isNull(arguments) || json.Unmarshal(arguments, &written) != nil {
		written = strings.Trim(string(arguments), " ")
	}
	step := one.label
	step.Role, step.Text = "", ""
	step.Thought, step.Action = strings.Join(one.before, "\n"), fmt.Sprintf("%s(%s)", called.Name, written)
	id := given.CallID
	if id == "" {
		id = given.ID
	}
	r.waiting = append(r.waiting, pendingCall{id, called.Name, len(r.made), step.number})
	r.made = append(r.made, step)
	one.said, one.before = nil, nil
	return nil
}

// result adds what a tool returned to the step of its call; without one it is a step of its own.
func (r *conversationReader) result(given chatMessage, label Chunk) error {
	content := given.Output
	if isNull(content) {
		content = given.Content
	}
	found := &turn{label: label}
	if err := r.content(content, found); err != nil {
		return err
	}
	text := strings.Join(found.said, "\n")
	if given.IsError {
		text = "Error: " + text
	}
	id := given.ToolCallID + given.ToolUseID + given.CallID
	// The latest that fits: a call that was aborted waits for ever, and ids may be used again. Of
	// several of one message the oldest: results have the order of their calls.
	best := -1
	for at, one := range r.waiting {
		fits := id == "" && (given.Name == "" || one.name == given.Name) || id != "" && one.id == id
		if fits && (best < 0 || one.number > r.waiting[best].number) {
			best = at
		}
	}
	if best < 0 {
		label.Observation = text
		r.made = append(r.made, label)
		return nil
	}
	r.made[r.waiting[best].at].Observation = text
	r.waiting = append(r.waiting[:best], r.waiting[best+1:]...)
	return nil
}
