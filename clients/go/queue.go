package palimpsest

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

// Ack says what is durable.
type Ack struct {
	// Sequence is the producer's number of the newest durable chunk, Position its place in the log.
	Sequence, Position int64
	// ReadToken makes a read see it applied: [Consistency].
	ReadToken string
}

// sent is an unacked chunk.
type sent struct {
	chunk *pb.Chunk
	size  int64
	// The span that sent it, as a header; empty: none.
	span string
}

// queue has the unacked chunks of a producer, in order; lost ones are sent again under the same
// numbers. It has no lock: the producer guards it.
type queue struct {
	waiting, underWay []sent
	bytes             int64
	credits           *pb.AppendChunksResponse_Credits
	next              int64
	// The newest ack of this run; nil before the first.
	ack *Ack
	// All chunks up to this number are durable.
	acked int64
	// Whether a stream was opened.
	opened bool
}

func newQueue() *queue {
	return &queue{next: 1, credits: &pb.AppendChunksResponse_Credits{Chunks: 1, Bytes: 1}}
}

// prepare returns a chunk as it is sent, and refuses what no service accepts.
func (q *queue) prepare(chunk Chunk) (sent, error) {
	name := fmt.Sprintf("append %d", q.next)
	message, err := chunk.message(name)
	if err != nil {
		return sent{}, asError(err).reworded(err.Error(), "producer_sequence", strconv.FormatInt(q.next, 10))
	}
	if size := proto.Size(message); size > maxChunkBytes {
		// gRPC would end the whole stream without a reason.
		refused := invalid(name, "a chunk has %d bytes; no message holds more than %d of one", size, maxChunkBytes)
		refused.reason = ReasonChunkTooLarge
		return sent{}, refused.reworded(refused.message, "producer_sequence", strconv.FormatInt(q.next, 10), "bytes", strconv.Itoa(size), "limit_bytes", strconv.Itoa(maxChunkBytes))
	}
	return sent{chunk: message, size: sizeOf(message)}, nil
}

// hasCredit reports whether a chunk of this size may be put now.
func (q *queue) hasCredit(size int64) bool {
	count := len(q.waiting) + len(q.underWay)
	return count == 0 || count < int(q.credits.GetChunks()) && q.bytes+size <= q.credits.GetBytes()
}

// put adds a chunk, and returns its number.
func (q *queue) put(one sent) int64 {
	one.chunk.ProducerSequence = q.next
	q.next++
	q.waiting = append(q.waiting, one)
	q.bytes += one.size
	return one.chunk.ProducerSequence
}

// isEmpty reports whether everything is acked.
func (q *queue) isEmpty() bool { return len(q.waiting) == 0 && len(q.underWay) == 0 }

// traceChunks is how many chunks a batch has before a chunk of another sampled trace begins a new one,
// unless fewer wait: a message for each chunk costs too much.
const traceChunks = 32

// batch takes what to send next: at most so many chunks and bytes, and at least one chunk. Its span is
// the first that is sampled.
func (q *queue) batch(chunks int, bytes int64) *pb.AppendChunksRequest_Batch {
	// More than the credit may wait, if a server returned with less.
	chunks = min(chunks, max(int(q.credits.GetChunks()), 1), len(q.waiting))
	batch := &pb.AppendChunksRequest_Batch{}
	size, newest := int64(0), ""
	for at, one := range q.waiting[:chunks] {
		trace := traceOf(one.span)
		isApart := trace != newest && (at >= traceChunks || len(q.waiting)-at < traceChunks)
		if size += one.size; at > 0 && (size > bytes || isApart) {
			break
		}
		newest = trace
		if traceOf(batch.Traceparent) == "" {
			batch.Traceparent = cmp.Or(one.span, batch.Traceparent)
		}
		batch.Chunks = append(batch.Chunks, one.chunk)
	}
	count := len(batch.Chunks)
	q.underWay = append(q.underWay, q.waiting[:count]...)
	q.waiting = slices.Delete(q.waiting, 0, count)
	return batch
}

// isFull reports whether a whole batch waits.
func (q *queue) isFull(chunks int, bytes int64) bool {
	if len(q.waiting) >= chunks {
		return true
	}
	size := int64(0)
	for _, one := range q.waiting {
		if size += one.size; size >= bytes {
			return true
		}
	}
	return false
}

// begin begins a stream, which sends unacked chunks again. They are sent even if their numbers are
// durable: that writes nothing, repeats the lost ack, and is refused if another process sent other
// content.
func (q *queue) begin(opened *pb.AppendChunksResponse_Opened) {
	q.credits = opened.GetCredits()
	q.waiting = append(q.underWay, q.waiting...)
	q.underWay = nil
	if !q.opened {
		q.opened = true
		q.acked = opened.GetLastProducerSequence()
		q.next = q.acked + 1
	}
}

// takeAck forgets durable chunks.
func (q *queue) takeAck(ack *pb.AppendChunksResponse_Ack) {
	q.ack = &Ack{ack.GetThroughProducerSequence(), ack.GetThroughPosition(), ack.GetReadToken()}
	q.acked = ack.GetThroughProducerSequence()
	done := 0
	for done < len(q.underWay) && q.underWay[done].chunk.GetProducerSequence() <= q.acked {
		q.bytes -= q.underWay[done].size
		done++
	}
	q.underWay = slices.Delete(q.underWay, 0, done)
}

// refusedChunk is the chunk of a batch that a refusal names.
var refusedChunk = regexp.MustCompile(`^(?:batch\.)?chunks\[(\d{1,9})\]`)

// refusal returns a refusal with the number of the append that it names, if any.
func (q *queue) refusal(err *Error) *Error {
	number := err.metadata["producer_sequence"]
	for _, field := range slices.Sorted(maps.Keys(err.fields)) {
		found := refusedChunk.FindStringSubmatch(field)
		if number == "" && found != nil && len(q.underWay) > 0 {
			// All batches before the refused one are acked.
			at, _ := strconv.ParseInt(found[1], 10, 64)
			number = strconv.FormatInt(q.underWay[0].chunk.GetProducerSequence()+at, 10)
		}
	}
	if number == "" {
		return err
	}
	return err.reworded(fmt.Sprintf("append %s was refused: %v. It has ended this producer; what was appended up to %d is durable", number, err, q.acked), "producer_sequence", number)
}
