package palimpsest

import (
	"encoding/hex"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

func TestAnAuditEventFollowsTheOneBeforeIt(t *testing.T) {
	details, err := structpb.NewStruct(map[string]any{"edits": 2, "ok": true, "what": "a\u2029\n"})
	if err != nil {
		t.Fatal(err)
	}
	// The digest is that of the Python client.
	digest, err := hex.DecodeString("3f67ae64eae43c1c3ba0412598634d72d3934958c5710f92f9bc12d3a5fb02ad")
	if err != nil {
		t.Fatal(err)
	}
	event := &pb.AuditEvent{
		Sequence: 1, OccurredAt: timestamppb.New(time.Date(2026, 5, 1, 9, 30, 0, 120_000, time.UTC)), Principal: "key:1",
		Action: "memory.edit", Session: "s\u2028<&>\\u2028\"", Memory: "m", Target: "é\x01\x7f\t", Details: details,
		TenantUid: "t", Digest: digest,
	}
	if !AuditFollows(event, nil) {
		text, _ := canonical(event)
		t.Errorf("%s", text)
	}
	if AuditFollows(event, event) || AuditFollows(event, &pb.AuditEvent{}) {
		t.Error("it follows another event, too")
	}
	changed := proto.Clone(event).(*pb.AuditEvent)
	changed.Target = "other"
	if AuditFollows(changed, nil) {
		t.Error("a change is not noticed")
	}
}
