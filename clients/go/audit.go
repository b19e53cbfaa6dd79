package palimpsest

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"math"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// AuditFollows reports whether an event of an audit log is unchanged, and the next one after another;
// nil: it is the first. [Access.AuditEvents] without a filter yields the whole chain.
func AuditFollows(event, before *pb.AuditEvent) bool {
	digest := before.GetDigest()
	if before == nil {
		digest = make([]byte, sha256.Size)
	}
	text, err := canonical(event)
	if err != nil {
		return false
	}
	expected := sha256.Sum256(append(bytes.Clone(digest), text...))
	return event.GetSequence() == before.GetSequence()+1 && bytes.Equal(event.GetDigest(), expected[:])
}

// canonical returns the event as its digest covers it: JSON with sorted keys, without white space, and
// with nothing escaped that need not be.
func canonical(event *pb.AuditEvent) ([]byte, error) {
	details := map[string]any{}
	for name, value := range event.GetDetails().AsMap() {
		if number, ok := value.(float64); ok && number == math.Trunc(number) {
			value = int64(number)
		}
		details[name] = value
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(map[string]any{
		"tenant_id": event.GetTenantUid(), "sequence": event.GetSequence(), "principal": event.GetPrincipal(),
		"occurred_at": event.GetOccurredAt().AsTime().UTC().Format("2006-01-02T15:04:05.000000Z"),
		"action":      event.GetAction(), "session": event.GetSession(), "memory": event.GetMemory(),
		"target": event.GetTarget(), "details": details,
	})
	return unescapeSeparators(bytes.TrimSuffix(text.Bytes(), []byte("\n"))), err
}

// unescapeSeparators writes U+2028 and U+2029 as they are: encoding/json always escapes them.
func unescapeSeparators(text []byte) []byte {
	made := make([]byte, 0, len(text))
	for at := 0; at < len(text); at++ {
		if text[at] != '\\' {
			made = append(made, text[at])
			continue
		}
		switch {
		case bytes.HasPrefix(text[at:], []byte(`\u2028`)):
			made, at = append(made, "\u2028"...), at+5
		case bytes.HasPrefix(text[at:], []byte(`\u2029`)):
			made, at = append(made, "\u2029"...), at+5
		default:
			made, at = append(made, text[at], text[at+1]), at+1
		}
	}
	return made
}
