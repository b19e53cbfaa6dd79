package main

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"os"
	"strings"
	"time"

	palimpsest "palimpsest.invalid/clients/go"
	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

var upper = strings.ToUpper

type call func(ctx context.Context, d *driver, a *args) (any, error)

// calls are the commands of the suite.
var calls = map[string]call{
	"connect": func(ctx context.Context, d *driver, a *args) (any, error) {
		options := []palimpsest.Option{palimpsest.WithAddress(or(a.Target, os.Getenv("PALIMPSEST_URL")))}
		if a.Token != "" {
			options = append(options, palimpsest.WithToken(a.Token))
		}
		if a.CAFile != "" {
			options = append(options, palimpsest.WithCAFile(a.CAFile))
		}
		if a.Timeout != nil {
			options = append(options, palimpsest.WithTimeout(seconds(*a.Timeout)))
		}
		if a.ReachSeconds != nil {
			options = append(options, palimpsest.WithReachTimeout(seconds(*a.ReachSeconds)))
		}
		client, err := palimpsest.Connect(ctx, options...)
		d.mutex.Lock()
		defer d.mutex.Unlock()
		d.client = client
		return object{"sdk": "go", "version": palimpsest.Version}, err
	},
	"create_session": func(ctx context.Context, d *driver, a *args) (any, error) {
		session, err := d.client.CreateSession(ctx, a.Session, &palimpsest.SessionOptions{
			ExistOK: a.ExistOK, Metadata: a.Metadata, Language: a.Language, DefaultMemory: a.DefaultMemory,
			Retention: a.retention(), RequestID: a.RequestID,
		})
		if err != nil {
			return nil, err
		}
		return sessionOf(session.Get(ctx))
	},
	"get_session": func(ctx context.Context, d *driver, a *args) (any, error) { return sessionOf(d.session(a).Get(ctx)) },
	"list_sessions": func(ctx context.Context, d *driver, a *args) (any, error) {
		return listed("sessions", d.client.Sessions(ctx), func(one *pb.Session) any { found, _ := sessionOf(one, nil); return found })
	},
	"update_session": func(ctx context.Context, d *driver, a *args) (any, error) {
		return sessionOf(d.session(a).Update(ctx, palimpsest.SessionUpdate{Metadata: a.Metadata, Retention: a.retention(), ETag: a.ETag}))
	},
	"delete_session": func(ctx context.Context, d *driver, a *args) (any, error) {
		return object{}, d.session(a).Delete(ctx, &palimpsest.DeleteOptions{MissingOK: a.MissingOK, RequestID: a.RequestID})
	},
	"remember": func(ctx context.Context, d *driver, a *args) (any, error) {
		given, err := content(a.Messages)
		if err != nil {
			return nil, err
		}
		found, err := d.session(a).Remember(ctx, given, &palimpsest.RememberOptions{
			Thread: a.Thread, Source: a.Source, OccurredAt: a.OccurredAt, Metadata: a.Metadata,
			IncludeSystem: a.IncludeSystem, RequestID: a.RequestID, Wait: a.Wait,
		})
		if err != nil {
			return nil, err
		}
		return object{
			"positions": positions(found.Positions), "read_token": found.ReadToken, "request_id": found.RequestID,
			"chunks": found.Chunks, "skipped": found.Skipped,
		}, nil
	},
	"recall": func(ctx context.Context, d *driver, a *args) (any, error) {
		query, err := content(a.Query)
		if err != nil {
			return nil, err
		}
		options := &palimpsest.RecallOptions{Tokens: a.Tokens, Memories: a.Memories, Filter: a.filter(), Consistency: a.consistency()}
		for _, one := range a.Sections {
			options.Sections = append(options.Sections, pb.RecallSection(pb.RecallSection_value["RECALL_SECTION_"+upper(one)]))
		}
		found, err := d.session(a).Recall(ctx, query, options)
		if err != nil {
			return nil, err
		}
		parts := []any{}
		for _, one := range found.GetParts() {
			parts = append(parts, object{"section": short(one.GetSection()), "text": one.GetText(), "positions": rangeOf(one.GetPositions())})
		}
		return object{"text": found.String(), "tokens": found.GetTokens(), "parts": parts, "read_token": found.GetReadPoint().GetReadToken()}, nil
	},
	"append": func(ctx context.Context, d *driver, a *args) (any, error) {
		found, err := d.session(a).Append(ctx, a.chunks(), &palimpsest.AppendOptions{RequestID: a.RequestID, ExpectedHead: a.ExpectedHead})
		if err != nil {
			return nil, err
		}
		return object{"positions": positions(found.Positions), "read_token": found.ReadToken, "request_id": found.RequestID}, nil
	},
	"list_chunks": func(ctx context.Context, d *driver, a *args) (any, error) {
		filter := a.filter()
		return listed("chunks", d.session(a).Chunks(ctx, &filter), chunkOf)
	},
	"search_chunks": func(ctx context.Context, d *driver, a *args) (any, error) {
		found, err := d.session(a).Search(ctx, text(a.Query), &palimpsest.SearchOptions{Limit: a.Limit, Mode: a.mode(), Consistency: a.consistency()})
		results := []any{}
		for at, one := range found.GetResults() {
			results = append(results, object{"rank": at + 1, "chunk": chunkOf(palimpsest.ChunkOf(one.GetChunk()))})
		}
		return object{"results": results, "mode": short(found.GetMode())}, err
	},
	"open_producer": func(ctx context.Context, d *driver, a *args) (any, error) {
		producer, err := d.session(a).OpenProducer(ctx, a.ProducerID, &palimpsest.ProducerOptions{
			Epoch: a.Epoch, ExpectedHead: a.ExpectedHead, GiveUp: optional(a.GiveUpSeconds),
		})
		if err != nil {
			return nil, err
		}
		d.keep(a, producer)
		return object{"last_acked_sequence": producer.LastAcked()}, nil
	},
	"send": func(ctx context.Context, d *driver, a *args) (any, error) {
		first, last := int64(0), int64(0)
		for _, one := range a.chunks() {
			sequence, err := kept[*palimpsest.Producer](d, a).Send(ctx, one)
			if err != nil {
				return nil, err
			}
			first, last = or(first, sequence), sequence
		}
		return object{"first_sequence": first, "last_sequence": last}, nil
	},
	"flush": func(ctx context.Context, d *driver, a *args) (any, error) {
		return ackOf(kept[*palimpsest.Producer](d, a).Flush(ctx))
	},
	"close_producer": func(ctx context.Context, d *driver, a *args) (any, error) {
		producer := kept[*palimpsest.Producer](d, a)
		err := producer.Close(ctx)
		return object{"last_acked_sequence": producer.LastAcked()}, err
	},
	"create_memory": func(ctx context.Context, d *driver, a *args) (any, error) {
		schema := palimpsest.SchemaSource(a.SchemaSource)
		switch {
		case a.Type != "":
			schema = palimpsest.SchemaOf[profile]()
		case len(a.JSONSchema) > 0:
			schema = palimpsest.JSONSchema(a.JSONSchema)
		}
		options := &palimpsest.MemoryOptions{ExistOK: a.ExistOK, Task: a.Task, RequestID: a.RequestID}
		memory, err := d.session(a).CreateMemory(ctx, a.Memory, schema, options)
		if err != nil {
			return nil, err
		}
		return memoryOf(memory.Get(ctx, nil))
	},
	"get_memory": func(ctx context.Context, d *driver, a *args) (any, error) {
		options := &palimpsest.ReadOptions{Revision: a.Revision, Position: a.Position, Consistency: a.consistency()}
		if a.Type == "" {
			found, err := d.session(a).Memory(a.Memory).Get(ctx, options)
			return withValue(found, json.RawMessage(or(found.GetValueJson(), "null")), err)
		}
		value, found, err := palimpsest.OpenMemory[profile](d.session(a), a.Memory).Read(ctx, options)
		return withValue(found, value, err)
	},
	"list_memories": func(ctx context.Context, d *driver, a *args) (any, error) {
		return listed("memories", d.session(a).Memories(ctx), func(one *pb.Memory) any { found, _ := memoryOf(one, nil); return found })
	},
	"delete_memory": func(ctx context.Context, d *driver, a *args) (any, error) {
		return object{}, d.session(a).Memory(a.Memory).Delete(ctx, &palimpsest.DeleteOptions{MissingOK: a.MissingOK})
	},
	"edit_memory": func(ctx context.Context, d *driver, a *args) (any, error) {
		edits, err := a.edits()
		if err != nil {
			return nil, err
		}
		done, err := d.session(a).Memory(a.Memory).Edit(ctx, edits, &palimpsest.EditOptions{
			ExpectedRevision: a.ExpectedRevision, Comment: a.Comment, RequestID: a.RequestID,
		})
		return object{"revision": done.GetMemory().GetRevision(), "amendments": amendments(done.GetAmendments())}, err
	},
	"wait_until_applied": func(ctx context.Context, d *driver, a *args) (any, error) {
		found, err := d.session(a).Memory(a.Memory).WaitUntilApplied(ctx, a.After)
		point := found.GetReadPoint()
		return object{"applied_position": point.GetAppliedPosition(), "revision": point.GetRevision()}, err
	},
	"get_provenance": func(ctx context.Context, d *driver, a *args) (any, error) {
		why, err := d.session(a).Memory(a.Memory).Provenance(ctx, a.Path, nil)
		if err != nil {
			return nil, err
		}
		entries := []any{}
		for one, err := range why.All() {
			if err != nil {
				return nil, err
			}
			entry, read := amendment(one.GetAmendment()), []any{}
			for _, chunk := range one.GetChunks() {
				read = append(read, chunkOf(palimpsest.ChunkOf(chunk)))
			}
			entry["in_effect"], entry["chunks"] = one.GetInEffect(), read
			entries = append(entries, entry)
		}
		return object{"path": why.GetPath(), "exists": why.ValueJson != nil, "value": json.RawMessage(or(why.GetValueJson(), "null")), "entries": entries}, nil
	},
	"watch_memory": func(ctx context.Context, d *driver, a *args) (any, error) {
		watch, err := d.session(a).Memory(a.Memory).Watch(context.Background(), &palimpsest.WatchOptions{
			AfterRevision: a.AfterRevision, ResumeToken: a.ResumeToken, GiveUp: optional(a.GiveUpSeconds),
		})
		d.keep(a, watch)
		return object{}, err
	},
	"next_revision": func(ctx context.Context, d *driver, a *args) (any, error) {
		event, err := kept[*palimpsest.Watch](d, a).Next()
		return object{"revision": event.GetRevision().GetRevision(), "amendments": amendments(event.GetAmendments()), "resume_token": event.GetResumeToken()}, err
	},
	"close_watch": func(ctx context.Context, d *driver, a *args) (any, error) {
		watch := kept[*palimpsest.Watch](d, a)
		watch.Close()
		return object{"resume_token": watch.ResumeToken()}, nil
	},
	"ask": func(ctx context.Context, d *driver, a *args) (any, error) {
		return answerOf(d.session(a).Ask(ctx, text(a.Query), a.question()))
	},
	"stream_ask": func(_ context.Context, d *driver, a *args) (any, error) {
		// As long as the stream, which has its own timeout.
		ctx, stop := context.WithCancel(context.Background())
		if a.Timeout != nil {
			ctx, stop = context.WithTimeout(ctx, seconds(*a.Timeout))
		}
		next, end := iter.Pull2(d.session(a).StreamAsk(ctx, text(a.Query), a.question()))
		events := &events{next, func() { stop(); end() }}
		d.keep(a, events)
		for {
			event, err := events.wait()
			if err != nil || event.GetReading() != nil {
				return object{"answer_id": event.GetReading().GetAnswer()}, err
			}
		}
	},
	"next_piece": func(ctx context.Context, d *driver, a *args) (any, error) {
		for {
			event, err := kept[*events](d, a).wait()
			if err != nil {
				return nil, err
			}
			if piece := event.GetText(); piece != nil {
				return object{"text": piece.GetText(), "restarts": piece.GetRestarts()}, nil
			}
			if answer := event.GetAnswer(); answer != nil {
				found, err := answerOf(&palimpsest.Answer{Answer: answer}, nil)
				return object{"answer": found}, err
			}
		}
	},
	"close_stream": func(ctx context.Context, d *driver, a *args) (any, error) {
		kept[*events](d, a).end()
		return object{}, nil
	},
	"resume_answer": func(ctx context.Context, d *driver, a *args) (any, error) {
		return answerOf(d.session(a).ResumeAnswer(ctx, a.AnswerID, &palimpsest.ResumeOptions{AfterEvent: a.AfterEvent, AfterText: a.AfterText}))
	},
	"cancel_answer": func(ctx context.Context, d *driver, a *args) (any, error) {
		return answerOf(d.session(a).CancelAnswer(ctx, a.AnswerID))
	},
	"get_answer": func(ctx context.Context, d *driver, a *args) (any, error) {
		return answerOf(d.session(a).Answer(ctx, a.AnswerID))
	},
	"open_agent": func(ctx context.Context, d *driver, a *args) (any, error) {
		options := &palimpsest.AgentOptions{Task: a.Task, Memory: a.Memory, GiveUp: optional(a.GiveUpSeconds), Wait: optional(a.WaitSeconds)}
		if a.WaitSeconds != nil && *a.WaitSeconds == 0 {
			options.Wait = -1
		}
		if a.PeriodTokens != nil {
			options.Spec = &pb.StateSpec{PeriodTokens: a.PeriodTokens}
		}
		agent, err := d.client.OpenAgent(ctx, a.Session, options)
		if err != nil {
			return nil, err
		}
		d.keep(a, agent)
		return object{"step": agent.Step()}, nil
	},
	"record_steps": func(ctx context.Context, d *driver, a *args) (any, error) {
		var ack *palimpsest.Ack
		for _, one := range a.Steps {
			var err error
			if ack, err = kept[*palimpsest.Agent](d, a).Record(ctx, palimpsest.Step(one.Thought, one.Action, one.Observation)); err != nil {
				return nil, err
			}
		}
		return ackOf(ack, nil)
	},
	"get_context": func(ctx context.Context, d *driver, a *args) (any, error) {
		found, err := kept[*palimpsest.Agent](d, a).Context(ctx)
		vectors, recent := []any{}, []any{}
		for _, one := range found.GetVectors() {
			vectors = append(vectors, object{"level": one.GetLevel(), "text": one.GetText()})
		}
		for _, one := range found.GetRecent() {
			recent = append(recent, chunkOf(palimpsest.ChunkOf(one)))
		}
		return object{"text": found.GetText(), "head": found.GetHead(), "vectors": vectors, "recent": recent}, err
	},
	"close_agent": func(ctx context.Context, d *driver, a *args) (any, error) {
		agent := kept[*palimpsest.Agent](d, a)
		err := agent.Close(ctx)
		return object{"step": agent.Step()}, err
	},
}

// events are those of a question.
type events struct {
	next func() (*pb.AskEvent, error, bool)
	end  func()
}

func (e *events) wait() (*pb.AskEvent, error) {
	event, err, more := e.next()
	if !more {
		return nil, errors.New("the stream has ended")
	}
	return event, err
}

func (a *args) question() *palimpsest.AskOptions {
	options := &palimpsest.AskOptions{Memory: a.Memory, Reader: pb.Reader(pb.Reader_value["READER_"+upper(a.Reader)]), Consistency: a.consistency()}
	if len(a.ResponseSchema) > 0 {
		options.ResponseSchema = palimpsest.JSONSchema(a.ResponseSchema)
	}
	return options
}

func optional(count *float64) time.Duration {
	if count == nil {
		return 0
	}
	return seconds(*count)
}

func text(raw json.RawMessage) (said string) {
	_ = json.Unmarshal(raw, &said)
	return said
}
