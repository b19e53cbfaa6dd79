package palimpsest

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// shown returns chunks in one line each: role, text, thought, action and observation.
func shown(chunks Chunks) string {
	var lines []string
	for _, one := range chunks {
		line := fmt.Sprintf("%s: %s", one.Role, one.Text)
		if one.isStep() {
			line = fmt.Sprintf("step: %q %q %q", one.Thought, one.Action, one.Observation)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func TestMessagesOfOtherClientsAreChunks(t *testing.T) {
	for name, one := range map[string]struct{ given, wanted string }{
		"a text":             {`"It rains."`, `: It rains.`},
		"texts":              {`["One.", "Two."]`, ": One.\n: Two."},
		"one message":        {`{"role": "user", "content": "Hi."}`, "user: Hi."},
		"none":               {`[]`, ""},
		"a null content":     {`[{"role": "assistant", "content": null, "refusal": "No."}]`, "assistant: No."},
		"an empty content":   {`[{"role": "assistant", "content": ""}]`, "assistant: "},
		"a text with labels": {`{"text": "It rains.", "thread": "t"}`, ": It rains."},
		"a step":             {`{"thought": "why", "action": "go()", "observation": "gone"}`, `step: "why" "go()" "gone"`},
		"parts of OpenAI": {
			`{"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "input_text", "text": "Two."}, "Three."]}`,
			"user: One.\nTwo.\nThree.",
		},
		"calls of OpenAI, whose results come in another order": {
			`[{"role": "assistant", "content": "I look.", "tool_calls": [
				{"id": "1", "type": "function", "function": {"name": "find", "arguments": "{\"a\": 1}"}},
				{"id": "2", "type": "custom", "custom": {"name": "run", "input": "ls"}}]},
			  {"role": "tool", "tool_call_id": "2", "content": "a.txt"},
			  {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "found"}]},
			  {"role": "assistant", "content": "Done."}]`,
			`step: "I look." "find({\"a\": 1})" "found"` + "\n" + `step: "" "run(ls)" "a.txt"` + "\nassistant: Done.",
		},
		"reasoning before a call": {
			`{"role": "assistant", "content": null, "reasoning_content": "Look first.", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": ""}}]}`,
			`step: "Look first." "f()" ""`,
		},
		"items of OpenAI's Responses": {
			`[{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
			  {"type": "reasoning", "summary": []},
			  {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
			  {"type": "function_call_output", "call_id": "1", "output": "done"}]`,
			"assistant: I look.\n" + `step: "" "f({})" "done"`,
		},
		"blocks of Anthropic": {
			`[{"role": "assistant", "content": [
				{"type": "thinking", "thinking": "Hm.", "signature": "x"}, {"type": "redacted_thinking", "data": "x"},
				{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "1", "name": "f", "input": {"a": [1]}},
				{"type": "text", "text": "Then?"}]},
			  {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "is_error": true, "content": [{"type": "text", "text": "no"}]},
				{"type": "text", "text": "Go on."}]}]`,
			`step: "Hm.\nI look." "f({\"a\": [1]})" "Error: no"` + "\nassistant: Then?\nuser: Go on.",
		},
		"a thought that no call follows is not said": {
			`{"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes."}]}`,
			"assistant: Yes.",
		},
		"a result without its call": {`{"role": "tool", "tool_call_id": "9", "content": "found"}`, `step: "" "" "found"`},
		"a call that waits for ever, and its id again": {
			`[{"role": "assistant", "content": null, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "old"}}]},
			  {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "new"}}]},
			  {"role": "tool", "tool_call_id": "1", "content": "of the new one"}]`,
			`step: "" "f(old)" ""` + "\n" + `step: "" "f(new)" "of the new one"`,
		},
	} {
		chunks, err := ParseMessages([]byte(one.given))
		if err != nil || shown(chunks) != one.wanted {
			t.Errorf("%s: %v\n%s\nnot\n%s", name, err, shown(chunks), one.wanted)
		}
	}
}

func TestWhatIsNoTextIsRefusedByItsNumber(t *testing.T) {
	for given, said := range map[string]string{
		`[1]`:                              "message 1: it is no text and no message",
		`["a", {"content": "b"}]`:          "message 2: it has no role",
		`[{"role": "user"}]`:               "message 1: it has no content",
		`[{"role": "user", "content": 1}]`: "message 1: its content is no text and no list of parts",
		`[{"role": "user", "content": [{"type": "text"}]}]`:                                 "message 1: part 1: it has no text",
		`[{"role": "user", "content": ["a", {"type": "image_url", "image_url": {}}]}]`:      `message 1: part 2: a part of type "image_url" is not remembered`,
		`[{"role": "assistant", "content": null, "audio": {"id": "1"}}]`:                    "message 1: audio is not remembered",
		`[{"role": "assistant", "content": null, "tool_calls": [{"function": {}}]}]`:        "message 1: a call has no name of a tool",
		`[{"role": "user", "content": [{"type": "tool_use", "name": {}}]}]`:                 "message 1: part 1",
		`[{"role": "user", "content": "a", "occurred_at": "yesterday"}]`:                    "message 1",
		`{"role": "user", "content": [{"type": "tool_result", "content": [{"type":"x"}]}]}`: `part 1: part 1: a part of type "x"`,
		`[`:        "they are no JSON",
		``:         "message 1",
		`{"a": 1}`: "message 1: it has no role",
	} {
		chunks, err := ParseMessages([]byte(given))
		if !errors.Is(err, ReasonFieldInvalid) || !strings.Contains(err.Error(), said) {
			t.Errorf("%s: %v %v, not %q", given, chunks, err, said)
		}
	}
}

func TestLabelsOfMessagesAreThoseOfTheirChunks(t *testing.T) {
	chunks, err := ParseMessages([]byte(`[{"role": "user", "content": "Hi.", "name": "ann", "thread": "t", "occurred_at": "2026-05-01T09:30:00Z", "metadata": {"k": "v"}},
		{"role": "user", "content": "Ho.", "name": "ann", "source": "bob"}]`))
	if err != nil {
		t.Fatal(err)
	}
	first := chunks[0]
	if first.Source != "ann" || first.Thread != "t" || first.Metadata["k"] != "v" || !first.OccurredAt.Equal(time.Date(2026, 5, 1, 9, 30, 0, 0, time.UTC)) || chunks[1].Source != "bob" {
		t.Errorf("%+v", chunks)
	}
}

// param is a message of another client, which writes itself as JSON.
type param struct{ role, text string }

func (p param) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]any{"role": p.role, "content": p.text})
}

func TestValuesOfOtherClientsAreMessages(t *testing.T) {
	for _, given := range []any{
		[]param{{"user", "Hi."}, {"assistant", "Ho."}},
		[]map[string]any{{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Ho."}},
		[]any{param{"user", "Hi."}, json.RawMessage(`{"role": "assistant", "content": "Ho."}`)},
		json.RawMessage(`[{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Ho."}]`),
	} {
		chunks, err := MessagesFrom(given)
		if err != nil || shown(chunks) != "user: Hi.\nassistant: Ho." {
			t.Errorf("%T: %v\n%s", given, err, shown(chunks))
		}
	}
	if _, err := MessagesFrom(make(chan int)); !errors.Is(err, ReasonFieldInvalid) {
		t.Error(err)
	}
}
