package palimpsest_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	palimpsest "palimpsest.invalid/clients/go"
	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

func Example() {
	ctx := context.Background()
	client, err := palimpsest.Connect(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	alice := client.Session("alice")
	if _, err := alice.Remember(ctx, palimpsest.Text("Alice eats no nuts."), nil); err != nil {
		log.Fatal(err)
	}
	known, err := alice.Recall(ctx, palimpsest.Text("What may she eat?"), nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(known)
	// Output:
	// # Latest
	// [1] Alice eats no nuts.
}

func ExampleError() {
	ctx := context.Background()
	client, err := palimpsest.Connect(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	_, err = client.Session("unknown").Get(ctx)
	if errors.Is(err, palimpsest.ReasonSessionNotFound) {
		fmt.Println("There is none.")
	}
	var refused *palimpsest.Error
	if errors.As(err, &refused) {
		fmt.Println(refused.Code(), refused.Reason(), refused.Metadata(), refused.Retryable())
	}
	// Output:
	// There is none.
	// NotFound SESSION_NOT_FOUND map[session:unknown] false
}

// Messages of other clients, with calls of tools and their results, are remembered as they are.
func ExampleMessagesFrom() {
	type message struct {
		Role       string           `json:"role"`
		Content    string           `json:"content"`
		ToolCalls  []map[string]any `json:"tool_calls,omitempty"`
		ToolCallID string           `json:"tool_call_id,omitempty"`
	}
	chunks, err := palimpsest.MessagesFrom([]message{
		{Role: "user", Content: "Is the museum open?"},
		{Role: "assistant", Content: "I look it up.", ToolCalls: []map[string]any{
			{"id": "1", "function": map[string]string{"name": "search", "arguments": `"museum"`}},
		}},
		{Role: "tool", ToolCallID: "1", Content: "Closed on Mondays."},
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, one := range chunks {
		fmt.Printf("%s %s|%s|%s|%s\n", one.Role, one.Text, one.Thought, one.Action, one.Observation)
	}
	// Output:
	// user Is the museum open?|||
	//  |I look it up.|search("museum")|Closed on Mondays.
}

// The value of a memory is a struct, whose schema models are shown.
func ExampleCreateMemory() {
	type Profile struct {
		Name      string   `json:"name" description:"What they are called."`
		Diet      string   `json:"diet" enum:"any,vegetarian,vegan"`
		Allergies []string `json:"allergies"`
	}
	ctx := context.Background()
	client, err := palimpsest.Connect(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	bob, err := client.CreateSession(ctx, "bob", &palimpsest.SessionOptions{ExistOK: true})
	if err != nil {
		log.Fatal(err)
	}
	profile, err := palimpsest.CreateMemory[Profile](ctx, bob, "profile", &palimpsest.MemoryOptions{ExistOK: true})
	if err != nil {
		log.Fatal(err)
	}
	// Workers write it as they read the log; what is known otherwise is put there by hand.
	_, err = profile.Edit(ctx, []palimpsest.Edit{palimpsest.Put("$.diet", "vegan")}, nil)
	if err != nil {
		log.Fatal(err)
	}
	known, err := profile.Value(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(known.Diet, len(known.Allergies))
	// Output: vegan 0
}

// What a document says is cited by the positions of its chunks.
func ExampleSession_Ask() {
	ctx := context.Background()
	client, err := palimpsest.Connect(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	town := client.Session("town")
	if _, err := town.Remember(ctx, palimpsest.Text("The harbour museum is closed on Mondays."), nil); err != nil {
		log.Fatal(err)
	}
	answer, err := town.Ask(ctx, "When is the museum closed?", &palimpsest.AskOptions{Reader: pb.Reader_READER_WHOLE})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer)
	for _, cited := range answer.GetCitations() {
		fmt.Println(cited.GetPosition(), cited.GetExcerpt())
	}
	// Output:
	// The harbour museum is closed on Mondays.
	// 1 The harbour museum is closed on Mondays.
}

// The text of an answer is printed as it is written.
func ExampleSession_StreamAsk() {
	ctx := context.Background()
	client, err := palimpsest.Connect(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	for event, err := range client.Session("town").StreamAsk(ctx, "When is the museum closed?", nil) {
		if err != nil {
			log.Fatal(err)
		}
		if event.GetText().GetRestarts() {
			fmt.Println()
		}
		fmt.Print(event.GetText().GetText())
	}
}

// A long stream of lines, each stored once, however often the connection is lost.
func ExampleSession_OpenProducer() {
	ctx := context.Background()
	client, err := palimpsest.Connect(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	session, err := client.CreateSession(ctx, "lines", &palimpsest.SessionOptions{ExistOK: true})
	if err != nil {
		log.Fatal(err)
	}
	producer, err := session.OpenProducer(ctx, "importer", nil)
	if err != nil {
		log.Fatal(err)
	}
	lines := []string{"one", "two", "three"}
	// After an interruption it continues with what is not durable.
	for _, line := range lines[producer.LastAcked():] {
		if _, err := producer.Send(ctx, palimpsest.Text(line)); err != nil {
			log.Fatal(err)
		}
	}
	if err := producer.Close(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(producer.LastAcked(), "lines are durable")
	// Output: 3 lines are durable
}

// The loop of an agent has a context that stays short.
func ExampleClient_OpenAgent() {
	ctx := context.Background()
	client, err := palimpsest.Connect(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	agent, err := client.OpenAgent(ctx, "run-42", &palimpsest.AgentOptions{Task: "Find the red key."})
	if err != nil {
		log.Fatal(err)
	}
	for _, room := range []string{"kitchen", "cellar"} {
		known, err := agent.Context(ctx)
		if err != nil {
			log.Fatal(err)
		}
		// A model decides upon known.GetText(), and the world answers.
		fmt.Println(len(known.GetRecent()), "recent steps")
		if _, err := agent.Record(ctx, palimpsest.Step("It may be there.", "enter the "+room, "It is dark.")); err != nil {
			log.Fatal(err)
		}
	}
	if err := agent.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 0 recent steps
	// 1 recent steps
}
