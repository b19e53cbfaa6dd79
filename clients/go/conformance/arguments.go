package main

import (
	"encoding/json"
	"fmt"
	"time"

	palimpsest "palimpsest.invalid/clients/go"
	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// args are the arguments of all calls.
type args struct {
	Handle       string   `json:"handle"`
	Timeout      *float64 `json:"timeout"`
	Target       string   `json:"target"`
	Token        string   `json:"token"`
	CAFile       string   `json:"ca_file"`
	ReachSeconds *float64 `json:"reach_seconds"`

	Session       string            `json:"session"`
	ExistOK       bool              `json:"exist_ok"`
	MissingOK     bool              `json:"missing_ok"`
	Metadata      map[string]string `json:"metadata"`
	Language      string            `json:"language"`
	DefaultMemory *bool             `json:"default_memory"`
	ETag          string            `json:"etag"`
	RequestID     string            `json:"request_id"`

	Messages      json.RawMessage `json:"messages"`
	Thread        string          `json:"thread"`
	Source        string          `json:"source"`
	OccurredAt    time.Time       `json:"occurred_at"`
	Wait          bool            `json:"wait"`
	IncludeSystem bool            `json:"include_system"`

	Query           json.RawMessage `json:"query"`
	Tokens          int32           `json:"tokens"`
	Limit           int32           `json:"limit"`
	Mode            string          `json:"mode"`
	Sections        []string        `json:"sections"`
	Memories        []string        `json:"memories"`
	FromPosition    int64           `json:"from_position"`
	ToPosition      int64           `json:"to_position"`
	Threads         []string        `json:"threads"`
	ExcludedThreads []string        `json:"excluded_threads"`
	Sources         []string        `json:"sources"`
	OccurredSince   time.Time       `json:"occurred_since"`
	OccurredUntil   time.Time       `json:"occurred_until"`
	After           string          `json:"after"`
	FullyApplied    bool            `json:"fully_applied"`

	Chunks        []chunk  `json:"chunks"`
	ExpectedHead  *int64   `json:"expected_head"`
	ProducerID    string   `json:"producer_id"`
	Epoch         int64    `json:"epoch"`
	GiveUpSeconds *float64 `json:"give_up_seconds"`
	WaitSeconds   *float64 `json:"wait_seconds"`

	Memory           string          `json:"memory"`
	Type             string          `json:"type"`
	SchemaSource     string          `json:"schema_source"`
	JSONSchema       json.RawMessage `json:"json_schema"`
	Task             string          `json:"task"`
	Revision         *int64          `json:"revision"`
	Position         *int64          `json:"position"`
	Edits            []edit          `json:"edits"`
	ExpectedRevision *int64          `json:"expected_revision"`
	Comment          string          `json:"comment"`
	Path             string          `json:"path"`
	AfterRevision    *int64          `json:"after_revision"`
	ResumeToken      string          `json:"resume_token"`

	Reader         string          `json:"reader"`
	ResponseSchema json.RawMessage `json:"response_schema"`
	AnswerID       string          `json:"answer_id"`
	AfterEvent     int32           `json:"after_event"`
	AfterText      int32           `json:"after_text"`

	Queries        []string                      `json:"queries"`
	Positions      []struct{ First, Last int64 } `json:"positions"`
	Text           string                        `json:"text"`
	CaseSensitive  bool                          `json:"case_sensitive"`
	KeepOut        *bool                         `json:"keep_out"`
	Reason         string                        `json:"reason"`
	DryRun         bool                          `json:"dry_run"`
	IncludeImports bool                          `json:"include_imports"`
	RestoreDeleted bool                          `json:"restore_deleted"`
	Operation      string                        `json:"operation"`
	ID             string                        `json:"id"`

	Period        string   `json:"period"`
	LimitTokens   *int64   `json:"limit_tokens"`
	LimitMicroUSD *int64   `json:"limit_micro_usd"`
	GroupBy       []string `json:"group_by"`

	SegmentTokens int32  `json:"segment_tokens"`
	MaxChildren   int32  `json:"max_children"`
	SummaryTokens int32  `json:"summary_tokens"`
	Model         string `json:"model"`
	Node          string `json:"node"`
	Parent        string `json:"parent"`
	Level         int32  `json:"level"`

	Tenant        string            `json:"tenant"`
	DisplayName   *string           `json:"display_name"`
	Suspended     *bool             `json:"suspended"`
	Retention     json.RawMessage   `json:"retention"`
	Changes       map[string]*int64 `json:"changes"`
	Scopes        []string          `json:"scopes"`
	SessionPrefix string            `json:"session_prefix"`
	ExpiresAt     time.Time         `json:"expires_at"`
	Action        string            `json:"action"`
	Principal     string            `json:"principal"`
	NewestFirst   bool              `json:"newest_first"`
	Trust         string            `json:"trust"`

	PeriodTokens *int32 `json:"period_tokens"`
	Steps        []step `json:"steps"`
}

type edit struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

type step struct {
	Observation string `json:"observation"`
	Thought     string `json:"thought"`
	Action      string `json:"action"`
}

// chunk is a chunk as the suite writes it.
type chunk struct {
	Text    string `json:"text"`
	Message *struct {
		Role string `json:"role"`
		Text string `json:"text"`
	} `json:"message"`
	AgentStep  *step             `json:"agent_step"`
	Thread     string            `json:"thread"`
	Source     string            `json:"source"`
	OccurredAt time.Time         `json:"occurred_at"`
	Metadata   map[string]string `json:"metadata"`
}

// profile is the type "Profile" of the suite.
type profile struct {
	Name      string            `json:"name" description:"What they are called."`
	Age       int               `json:"age"`
	Allergies []string          `json:"allergies"`
	Facts     map[string]string `json:"facts"`
	Address   struct {
		Street string `json:"street"`
		City   string `json:"city"`
	} `json:"address"`
}

func arguments(raw json.RawMessage) *args {
	given := &args{}
	if err := json.Unmarshal(raw, given); err != nil {
		panic(err)
	}
	return given
}

func (c chunk) chunk() palimpsest.Chunk {
	made := palimpsest.Chunk{Text: c.Text, Thread: c.Thread, Source: c.Source, OccurredAt: c.OccurredAt, Metadata: c.Metadata}
	if c.Message != nil {
		made.Role, made.Text = c.Message.Role, c.Message.Text
	}
	if c.AgentStep != nil {
		made.Observation, made.Thought, made.Action = c.AgentStep.Observation, c.AgentStep.Thought, c.AgentStep.Action
	}
	return made
}

func (a *args) chunks() palimpsest.Chunks {
	made := palimpsest.Chunks{}
	for _, one := range a.Chunks {
		made = append(made, one.chunk())
	}
	return made
}

// content returns what is remembered, or asked for: a text, a message or a list of them.
func content(raw json.RawMessage) (palimpsest.Content, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return palimpsest.Text(text), nil
	}
	return palimpsest.ParseMessages(raw)
}

func (a *args) filter() palimpsest.Filter {
	return palimpsest.Filter{
		FromPosition: a.FromPosition, ToPosition: a.ToPosition, Threads: a.Threads, ExcludedThreads: a.ExcludedThreads,
		Sources: a.Sources, OccurredSince: a.OccurredSince, OccurredUntil: a.OccurredUntil,
	}
}

func (a *args) consistency() palimpsest.Consistency {
	return palimpsest.Consistency{After: a.After, FullyApplied: a.FullyApplied}
}

func (a *args) mode() pb.SearchMode {
	return pb.SearchMode(pb.SearchMode_value["SEARCH_MODE_"+upper(a.Mode)])
}

func (a *args) edits() ([]palimpsest.Edit, error) {
	var made []palimpsest.Edit
	for _, one := range a.Edits {
		switch one.Op {
		case "put":
			made = append(made, palimpsest.Put(one.Path, one.Value))
		case "add":
			made = append(made, palimpsest.Add(one.Path, one.Value))
		case "update":
			made = append(made, palimpsest.Update(one.Path, one.Value))
		case "remove":
			made = append(made, palimpsest.Remove(one.Path))
		default:
			return nil, fmt.Errorf("%q is no edit", one.Op)
		}
	}
	return made, nil
}
