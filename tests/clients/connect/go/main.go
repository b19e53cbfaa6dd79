// Calls the API by Connect over HTTP, and prints a line of JSON for each thing tried.
// `deadlines edit` and `deadlines append` instead make calls that do not end before their deadlines.
// Environment: PALIMPSEST_HTTP_URL, PALIMPSEST_TOKEN.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	pb "program/gen/palimpsest/v1"
	api "program/gen/palimpsest/v1/palimpsestv1connect"
)

const session = "from-connect-go"

func show(name string, result any) {
	line, err := json.Marshal(map[string]any{"name": name, "result": result})
	check(err)
	fmt.Println(string(line))
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// Sees requests and responses as they are on the wire, and sends the token.
type wire struct {
	token            string
	method, encoding string
}

func (w *wire) RoundTrip(request *http.Request) (*http.Response, error) {
	if w.token != "" {
		request.Header.Set("authorization", "Bearer "+w.token)
	}
	response, err := http.DefaultTransport.RoundTrip(request)
	if err == nil {
		w.method, w.encoding = request.Method, response.Header.Get("content-encoding")
	}
	return response, err
}

func failure(err error) any {
	var failed *connect.Error
	if !errors.As(err, &failed) {
		return "no error"
	}
	for _, detail := range failed.Details() {
		value, err := detail.Value()
		check(err)
		if info, ok := value.(*errdetails.ErrorInfo); ok {
			if info.Metadata == nil {
				info.Metadata = map[string]string{}
			}
			return []any{failed.Code().String(), info.Reason, info.Metadata}
		}
	}
	return []any{failed.Code().String(), nil, nil}
}

// Returns whether the answer names the day, and the error that the stream ended with.
func ask(answers api.AnswerServiceClient, session string) (bool, error) {
	request := &pb.AskRequest{
		Session: session, Query: "When is the museum closed?", Reader: pb.Reader_READER_WHOLE,
	}
	stream, err := answers.Ask(context.Background(), connect.NewRequest(request))
	if err != nil {
		return false, err
	}
	defer stream.Close()
	found := false
	for stream.Receive() {
		found = strings.Contains(stream.Msg().GetAnswer().GetText(), "Mondays")
	}
	return found, stream.Err()
}

func watch(memories api.MemoryServiceClient, session string) error {
	soon, cancel := context.WithTimeout(context.Background(), 700*time.Millisecond)
	defer cancel()
	request := &pb.WatchMemoryRequest{Session: session, Memory: "m"}
	stream, err := memories.WatchMemory(soon, connect.NewRequest(request))
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Receive() {
	}
	return stream.Err()
}

func try(url, codec string, options ...connect.ClientOption) {
	ctx := context.Background()
	seen := &wire{token: os.Getenv("PALIMPSEST_TOKEN")}
	client := &http.Client{Transport: seen}
	id := session + "-" + codec
	named := &pb.GetSessionRequest{Session: id}

	sessions := api.NewSessionServiceClient(client, url, options...)
	long := strings.Repeat("v", 1000)
	metadata := map[string]string{"key": long, "other": long}
	create := &pb.CreateSessionRequest{Session: &pb.Session{Id: id, Metadata: metadata}}
	made, err := sessions.CreateSession(ctx, connect.NewRequest(create))
	check(err)
	show(codec+": unary", made.Msg.Id)
	show(codec+": gzip of the response", []string{seen.method, seen.encoding})

	zipped := api.NewSessionServiceClient(client, url, append(options, connect.WithSendGzip())...)
	chunk := &pb.Chunk{Content: &pb.Chunk_Text{Text: "The museum is closed on Mondays."}}
	add := &pb.AppendRequest{Session: id, RequestId: "1", Chunks: []*pb.Chunk{chunk}}
	appended, err := zipped.Append(ctx, connect.NewRequest(add))
	check(err)
	show(codec+": gzip of the request", fmt.Sprint(appended.Msg.Positions.Last))

	reads := api.NewSessionServiceClient(client, url, append(options, connect.WithHTTPGet())...)
	read, err := reads.GetSession(ctx, connect.NewRequest(named))
	check(err)
	show(codec+": read by GET", []string{read.Msg.Id, seen.method})

	_, err = sessions.GetSession(ctx, connect.NewRequest(&pb.GetSessionRequest{Session: "nobody"}))
	show(codec+": error", failure(err))

	answers := api.NewAnswerServiceClient(client, url, options...)
	found, err := ask(answers, id)
	check(err)
	show(codec+": stream", found)
	_, err = ask(answers, "nobody")
	show(codec+": error of a stream", failure(err))

	memories := api.NewMemoryServiceClient(client, url, options...)
	memory := &pb.Memory{Session: id, Id: "m", Spec: &pb.Memory_Tree{Tree: &pb.TreeSpec{}}}
	_, err = memories.CreateMemory(ctx, connect.NewRequest(&pb.CreateMemoryRequest{Memory: memory}))
	check(err)
	show(codec+": deadline of a stream", connect.CodeOf(watch(memories, id)).String())
}

// Makes a call of the session "s" with the memory "m", which has an id.
func late(ctx context.Context, url, kind, id, timeout string, options ...connect.ClientOption) error {
	client := &http.Client{Transport: &wire{token: os.Getenv("PALIMPSEST_TOKEN")}}
	var header http.Header
	var call func() error
	if kind == "append" {
		one, two := &pb.Chunk{Content: &pb.Chunk_Text{Text: "one"}}, &pb.Chunk{Content: &pb.Chunk_Text{Text: "two"}}
		request := connect.NewRequest(&pb.AppendRequest{Session: "s", RequestId: id, Chunks: []*pb.Chunk{one, two}})
		header = request.Header()
		call = func() error {
			_, err := api.NewSessionServiceClient(client, url, options...).Append(ctx, request)
			return err
		}
	} else {
		edits := []*pb.Edit{{Path: "$.a", ValueJson: `"` + id + `"`}, {Path: "$.b", ValueJson: `"` + id + `"`}}
		request := connect.NewRequest(&pb.EditMemoryRequest{Session: "s", Memory: "m", RequestId: id, Edits: edits})
		header = request.Header()
		call = func() error {
			_, err := api.NewMemoryServiceClient(client, url, options...).EditMemory(ctx, request)
			return err
		}
	}
	if timeout != "" {
		header.Set("Connect-Timeout-Ms", timeout)
	}
	return call()
}

// Makes calls whose deadline is the client's own, or known to the service alone.
func deadlines(url, kind string) {
	var all sync.WaitGroup
	codecs := map[string][]connect.ClientOption{"proto": nil, "json": {connect.WithProtoJSON()}}
	for codec, options := range codecs {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			err := late(ctx, url, kind, codec+"-client", "", options...)
			show(codec+"-client", []string{connect.CodeOf(err).String()})
		})
		all.Go(func() {
			err := late(context.Background(), url, kind, codec+"-service", "2000", options...)
			var failed *connect.Error
			if !errors.As(err, &failed) {
				panic(err)
			}
			show(codec+"-service", []string{failed.Code().String(), failed.Message()})
		})
	}
	all.Wait()
}

func main() {
	url := os.Getenv("PALIMPSEST_HTTP_URL")
	if len(os.Args) == 3 && os.Args[1] == "deadlines" {
		deadlines(url, os.Args[2])
		return
	}
	anonymous := api.NewSessionServiceClient(http.DefaultClient, url)
	_, err := anonymous.GetSession(
		context.Background(), connect.NewRequest(&pb.GetSessionRequest{Session: session}))
	show("no token", failure(err))
	try(url, "proto")
	try(url, "json", connect.WithProtoJSON())
}
