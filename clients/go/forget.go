package palimpsest

import (
	"context"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// Selection says which chunks are forgotten, by exactly one of its fields.
type Selection struct {
	// Positions are ranges of the log.
	Positions []Positions
	// Thread and Source are those of the chunks.
	Thread, Source string
	// Text is in any part of the chunks, in any case unless CaseSensitive is set.
	Text string
}

// ForgetOptions are the options of [Session.Forget].
type ForgetOptions struct {
	CaseSensitive bool
	// KeepOut makes the same content a tombstone at once when it is appended anew; nil: for a Text only.
	KeepOut *bool
	// Reason is kept in the record of the erasure, for good: it must not repeat what is forgotten.
	Reason string
	// DryRun removes nothing.
	DryRun bool
	// IncludeImports first forgets the same in the tenant's sessions that were imported from this one.
	IncludeImports bool
	// RequestID makes a repeated call do nothing for 24 hours; empty: one is made for the call.
	RequestID string
}

// Forgotten is what was forgotten.
type Forgotten struct {
	*pb.RedactChunksResponse
	// Removal ends when nothing that was derived is left; nil: nothing has to be removed.
	Removal *Operation
}

// Forget removes the content of chunks, and everything derived from it, for good. Positions stay, as
// tombstones with Redacted set. Memories go back to before they read the chunks, and read the log on
// from there.
//
//	done, err := session.Forget(ctx, palimpsest.Selection{Text: "+1 555 0100"}, nil)
//	_, err = done.Removal.Wait(ctx)
//
// The record of it is in [Access.Erasures], with a receipt once all is removed.
func (s *Session) Forget(ctx context.Context, selection Selection, options *ForgetOptions) (*Forgotten, error) {
	given := orZero(options)
	request := &pb.RedactChunksRequest{
		Session: s.id, CaseSensitive: given.CaseSensitive, KeepOut: given.KeepOut, Reason: given.Reason,
		ValidateOnly: given.DryRun, IncludeImports: given.IncludeImports, RequestId: given.RequestID,
	}
	wanted := 0
	if len(selection.Positions) > 0 {
		ranges := &pb.RedactChunksRequest_Positions{}
		for _, one := range selection.Positions {
			ranges.Ranges = append(ranges.Ranges, &pb.PositionRange{First: one.First, Last: one.Last})
		}
		request.Selection = &pb.RedactChunksRequest_Positions_{Positions: ranges}
		wanted++
	}
	if selection.Thread != "" {
		request.Selection = &pb.RedactChunksRequest_Thread{Thread: selection.Thread}
		wanted++
	}
	if selection.Source != "" {
		request.Selection = &pb.RedactChunksRequest_Source{Source: selection.Source}
		wanted++
	}
	if selection.Text != "" {
		request.Selection = &pb.RedactChunksRequest_Text{Text: selection.Text}
		wanted++
	}
	if wanted != 1 {
		return nil, invalid("selection", "exactly one of Positions, Thread, Source and Text says which chunks are forgotten, not %d", wanted)
	}
	found, err := s.connection.sessions.RedactChunks(ctx, request)
	if err != nil {
		return nil, err
	}
	done := &Forgotten{RedactChunksResponse: found}
	if found.GetOperation() != nil {
		done.Removal = &Operation{found.GetOperation(), s.connection}
	}
	return done, nil
}
