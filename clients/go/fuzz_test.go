package palimpsest

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"unicode/utf8"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// `go test -fuzz FuzzParseMessages` searches for inputs that break one of these; without -fuzz the
// seeds run as tests.

func FuzzParseMessages(f *testing.F) {
	for _, seed := range []string{
		`"a"`, `["a", {"role": "user", "content": [{"type": "text", "text": "b"}, "c"]}]`, `[`, `null`, `[null]`, `{}`,
		`[{"role": "assistant", "content": null, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": null}}]}, {"role": "tool", "content": "x"}]`,
		`{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "tool_use", "name": "f"}]}]}`,
		`{"type": "function_call", "name": "f", "function": {"function": {"name": "g"}}}`, `{"role": "a", "content": "\u0000\ud800"}`,
		`{"thought": "a", "action": "b"}`, `{"text": "a", "occurred_at": "2026-05-01T09:30:00Z", "metadata": {"a": "b"}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		chunks, err := ParseMessages(raw)
		if err != nil {
			if !errors.Is(err, ReasonFieldInvalid) || len(chunks) > 0 {
				t.Errorf("%v, with %d chunks", err, len(chunks))
			}
			return
		}
		for _, one := range chunks {
			if one.isStep() && (one.Role != "" || one.Text != "") || one.number < 1 || one.number > len(raw) {
				t.Errorf("%+v", one)
			}
		}
		messages, skipped, err := conversation(chunks, RememberOptions{IncludeSystem: true})
		if err == nil && len(messages) == 0 && skipped < len(chunks) {
			t.Errorf("%d chunks became nothing, and %d were left out", len(chunks), skipped)
		}
		if len(queryOf(chunks)) > 4*maxQueryCharacters {
			t.Error("the query is too long")
		}
	})
}

func FuzzParseAddress(f *testing.F) {
	for _, seed := range []string{
		"", "localhost", "localhost:1", "grpc://[::1]:50051/", "grpcs://example.com", "unix:/run/a", "http://a", "grpc://", "::1", "[::1", "0]0", ":1", "a:", "a b", "grpcs://a:b:c", "grpc://a/b",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, given string) {
		address, secure, err := parseAddress(given)
		if err != nil {
			if address != "" || secure {
				t.Errorf("%q: %q %v with %v", given, address, secure, err)
			}
			return
		}
		if secure != strings.HasPrefix(strings.TrimSpace(given), "grpcs://") {
			t.Errorf("%q: secure is %v", given, secure)
		}
		if strings.HasPrefix(address, "unix:") {
			return
		}
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			t.Errorf("%q: %q: %v", given, address, err)
		}
		// What is sent in plain text to a local address must not leave this machine.
		if found := net.ParseIP(host); isLocal(address) && host != "localhost" && !found.IsLoopback() {
			t.Errorf("%q: %q of port %q is taken for local", given, host, port)
		}
	})
}

func FuzzToken(f *testing.F) {
	for _, seed := range []string{"", " ", "pal_abc\n", "a b", "a\r\nx: y", "é", "a.b.c", strings.Repeat("a", maxTokenCharacters+1)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, given string) {
		token, err := checkedToken(given)
		if err != nil {
			// Whatever short text was given, the error is one of a few that are written here.
			known := []string{"the token is empty", "the token has more than", "the token has characters"}
			for _, one := range known {
				if strings.HasPrefix(err.Error(), one) && token == "" {
					return
				}
			}
			t.Errorf("%q with %q", err, token)
		}
		for _, one := range []byte(token) {
			if one <= ' ' || one > '~' {
				t.Errorf("%q is no value of a header", token)
			}
		}
		if token == "" || token != strings.TrimSpace(given) || len(token) > maxTokenCharacters {
			t.Errorf("%q became %q", given, token)
		}
	})
}

func FuzzSplit(f *testing.F) {
	for _, seed := range []string{"", " ", "a", "a b c d e f", "a\n\nb\nc d", "\r\n\r\n", "ééééé ééééé", "\xff\xfe a b", "aaaaaaaaaaaaa"} {
		f.Add(seed, 5)
	}
	f.Fuzz(func(t *testing.T, text string, limit int) {
		if limit < 2 || limit > 1<<20 || !utf8.ValidString(text) {
			t.Skip()
		}
		whole := strings.TrimSpace(strings.ReplaceAll(text, "\r\n", "\n"))
		pieces := split(text, limit)
		said := ""
		for _, one := range pieces {
			if len([]rune(one)) > limit || strings.TrimSpace(one) == "" {
				t.Errorf("%q is a piece of at most %d characters", one, limit)
			}
			said += one
		}
		if len(pieces) == 1 {
			said = strings.TrimSpace(strings.ReplaceAll(said, "\r\n", "\n"))
		}
		// Pieces of nothing but white space are left out.
		if strings.Join(strings.Fields(said), "") != strings.Join(strings.Fields(whole), "") {
			t.Errorf("%q became %q", text, pieces)
		}
	})
}

func FuzzErrorOfTheService(f *testing.F) {
	for _, one := range []error{
		refusal(codes.NotFound, ReasonSessionNotFound, map[string]string{"session": "s"}),
		refusal(codes.InvalidArgument, ReasonFieldInvalid, map[string]string{"producer_sequence": "x"}),
		refusal(codes.Unavailable, ReasonServerStopping, nil, soon()),
		status.Error(codes.Unavailable, "x509: certificate has expired"), status.Error(codes.OK, ""),
	} {
		encoded, err := proto.Marshal(status.Convert(one).Proto())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(encoded)
	}
	f.Fuzz(func(t *testing.T, encoded []byte) {
		said := &statuspb.Status{}
		if proto.Unmarshal(encoded, said) != nil {
			t.Skip()
		}
		err := status.FromProto(said).Err()
		if err == nil {
			t.Skip()
		}
		known := fromRPC(context.Background(), err, "localhost:1")
		if known.Code() != status.Code(err) || asError(known) != known || known.Retryable() && known.Code() == codes.InvalidArgument {
			t.Errorf("%+v", known)
		}
		waiting := newQueue()
		waiting.underWay = []sent{{chunk: &pb.Chunk{ProducerSequence: 7}}}
		if refused := waiting.refusal(known); refused.Code() != known.Code() || refused.Reason() != known.Reason() {
			t.Errorf("%+v became %+v", known, refused)
		}
		if pause := callBackoff().pause(known); pause <= 0 {
			t.Errorf("%v after %+v", pause, known)
		}
	})
}
