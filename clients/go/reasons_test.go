package palimpsest

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

var update = flag.Bool("update", false, "write reasons.go anew")

// TestReasonsAreThoseOfTheProto compares reasons.go with ErrorReason; with -update it writes it.
func TestReasonsAreThoseOfTheProto(t *testing.T) {
	var text strings.Builder
	text.WriteString("package palimpsest\n\n// The reasons of errors, as errors.proto documents them with their metadata.\n// `go test -run Reasons -update` writes this file.\nconst (\n")
	values := pb.ErrorReason(0).Descriptor().Values()
	width := 0
	name := func(at int) (constant, reason string) {
		reason = strings.TrimPrefix(string(values.Get(at).Name()), "ERROR_REASON_")
		for word := range strings.SplitSeq(strings.ToLower(reason), "_") {
			constant += strings.ToUpper(word[:1]) + word[1:]
		}
		return "Reason" + constant, reason
	}
	for at := 1; at < values.Len(); at++ {
		constant, _ := name(at)
		width = max(width, len(constant))
	}
	for at := 1; at < values.Len(); at++ {
		constant, reason := name(at)
		fmt.Fprintf(&text, "\t%-*s Reason = %q\n", width, constant, reason)
	}
	text.WriteString(")\n")
	if *update {
		if err := os.WriteFile("reasons.go", []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile("reasons.go")
	if err != nil {
		t.Fatal(err)
	}
	if string(kept) != text.String() {
		t.Error("reasons.go is not what errors.proto says: run `go test -run Reasons -update .`")
	}
	if ReasonSessionNotFound != "SESSION_NOT_FOUND" {
		t.Error(ReasonSessionNotFound)
	}
}
