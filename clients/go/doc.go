// Package palimpsest is the Go client of Palimpsest, a memory service for programs that use language
// models.
//
// Three lines from nothing to something remembered and recalled, while `palimpsest up` runs:
//
//	client, err := palimpsest.Connect(ctx)
//	_, err = client.Session("alice").Remember(ctx, palimpsest.Text("Alice eats no nuts."), nil)
//	known, err := client.Session("alice").Recall(ctx, palimpsest.Text("What may she eat?"), nil)
//
// A [Session] is what memories are about: a user, a project, a document, an agent's run. What is
// appended to its log is a [Chunk]. Workers keep a [Memory] of the log: structured, by a struct
// ([CreateMemory]), a tree of summaries, or the state of an agent. Any memory, or the log itself, can
// be asked: [Session.Ask].
//
// # Options
//
// Methods take a pointer to a struct of options as their last argument; nil means the defaults, and
// so do zero values.
//
// # Deadlines
//
// The context of a call limits it. Without a deadline a call takes 30 seconds at most, a question or
// an append 60 ([WithTimeout]). Where the service itself waits for something, its error says how far
// that is: [ReasonNotAppliedInTime].
//
// # Calls are repeated
//
// While the service is away or full, calls are repeated until their deadlines. What writes has a
// request id, or a number of its producer, so that what has taken effect is not done twice, however
// often it is sent. A program that may itself repeat a call gives its own RequestID.
//
// # Errors
//
// All errors of the service are an *[Error] with a [Reason], and the values of that reason. Both
// [errors.As] and [errors.Is] find them. Nothing of a token is in an error.
//
// # The whole API
//
// Each call of the API has a method. The stubs of the package palimpsestpb can be called over
// [Client.Conn] as well: these calls have the same deadlines, tries, request ids and errors. The
// comments of the proto say what each of them does.
//
// # Traces
//
// Calls have the current span as headers where the program gives it: [WithTraceHeaders].
package palimpsest
