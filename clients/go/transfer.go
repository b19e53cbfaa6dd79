package palimpsest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"

	pb "palimpsest.invalid/clients/go/palimpsestpb"
)

const (
	// Bytes of lines in one message, of the first line, and of a line.
	maxDataBytes   = 512 << 10
	maxHeaderBytes = 16 << 10
	maxLineBytes   = 16 << 20
	// Tries in a row without any progress.
	maxTransferTries = 8
)

// Export writes all of the session to a file, for [Client.Import]. A file with a part of an export is
// continued, a complete one stays as it is, and one with other content is refused. Lost connections
// are made again. Only the file's owner may read it.
func (s *Session) Export(ctx context.Context, path string) error {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("the export cannot be written: %w", err)
	}
	defer file.Close()
	lines, err := exportedTo(file, s.id)
	if err != nil || lines.ended {
		return err
	}
	if err := s.exportTo(ctx, file, lines); err != nil {
		if found, unknown := file.Stat(); unknown == nil && found.Mode().IsRegular() && found.Size() == 0 {
			_ = os.Remove(path)
		}
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// ExportTo writes all of the session to a writer, in blocks that end with a check. Lost connections are
// made again; what ends with an error has to be written anew.
func (s *Session) ExportTo(ctx context.Context, writer io.Writer) error {
	return s.exportTo(ctx, writer, &exportLines{})
}

func (s *Session) exportTo(ctx context.Context, writer io.Writer, lines *exportLines) error {
	pauses := streamBackoff()
	for tries := 1; ; tries++ {
		before := lines.bytes
		err := s.exportOnce(ctx, writer, lines)
		if err == nil {
			return nil
		}
		known := s.connection.reach.failure(ctx, err)
		if lines.bytes > before {
			pauses, tries = streamBackoff(), 1
		}
		if !mayPass(known) || tries >= maxTransferTries || sleep(ctx, pauses.pause(known)) != nil {
			return known
		}
		lines.restart()
	}
}

func (s *Session) exportOnce(ctx context.Context, writer io.Writer, lines *exportLines) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request := &pb.ExportSessionRequest{Session: s.id}
	if lines.check != nil {
		request.Resume = &pb.ExportSessionRequest_Resume{ExportId: lines.exportID, CheckLine: lines.check}
	}
	stream, err := s.connection.sessions.ExportSession(ctx, request)
	if err != nil {
		return err
	}
	for {
		response, err := stream.Recv()
		if isEnd(err) && lines.ended {
			return nil
		}
		if isEnd(err) {
			return &Error{code: codes.Unavailable, message: "the service ended the export without a reason"}
		}
		if err != nil {
			return err
		}
		blocks, err := lines.feed(response.GetData())
		if err != nil {
			return err
		}
		if _, err := writer.Write(blocks); err != nil {
			return &Error{code: codes.Unknown, message: fmt.Sprintf("the export cannot be written: %v", err), cause: err}
		}
	}
}

// exportLines cuts an export into blocks that end with a check, after each of which it can continue.
type exportLines struct {
	exportID string
	// The line of the last check; nil before the first.
	check []byte
	// Bytes up to its end.
	bytes int64
	// Whether the last line of the export has come.
	ended bool
	rest  []byte
	// Bytes of the rest that are whole lines.
	read int
}

// feed returns the blocks that are complete.
func (l *exportLines) feed(data []byte) ([]byte, error) {
	l.rest = append(l.rest, data...)
	complete := 0
	for {
		end := bytes.IndexByte(l.rest[l.read:], '\n')
		if end < 0 {
			break
		}
		line := l.rest[l.read : l.read+end+1]
		l.read += end + 1
		if l.exportID == "" {
			header, err := exportHeader(line)
			if err != nil {
				return nil, err
			}
			l.exportID = header.ExportID
		}
		l.ended = bytes.HasPrefix(line, []byte(`{"record":"end"`))
		if l.ended || bytes.HasPrefix(line, []byte(`{"record":"check"`)) {
			l.check, complete = bytes.Clone(line), l.read
		}
	}
	if len(l.rest)-l.read > maxLineBytes {
		return nil, invalid("export", "it has a line of more than %d bytes, which no export has", maxLineBytes)
	}
	block := bytes.Clone(l.rest[:complete])
	l.rest = append(l.rest[:0], l.rest[complete:]...)
	l.read -= complete
	l.bytes += int64(complete)
	return block, nil
}

// restart forgets what came after the last complete block.
func (l *exportLines) restart() {
	l.rest, l.read = nil, 0
	if l.check == nil {
		l.exportID = ""
	}
}

// exportedTo returns how far the export of a session in a file is, and cuts off what came after that.
func exportedTo(file *os.File, session string) (*exportLines, error) {
	lines := &exportLines{}
	found, err := file.Stat()
	if err != nil || !found.Mode().IsRegular() {
		return lines, err
	}
	reader := bufio.NewReaderSize(file, maxHeaderBytes)
	first, err := reader.ReadSlice('\n')
	switch {
	case err == nil:
		header, wrong := exportHeader(first)
		if wrong != nil {
			return nil, wrong
		}
		if header.Session != session {
			return nil, invalid("path", "%s has an export of another session: name another file", file.Name())
		}
	case err == io.EOF && (len(first) == 0 || first[0] == '{'):
		// It is empty, or was interrupted within the header.
	case err == io.EOF || err == bufio.ErrBufferFull:
		return nil, invalid("path", "%s has other content than an export: name another file", file.Name())
	default:
		return nil, err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	data := make([]byte, maxDataBytes)
	for {
		count, err := file.Read(data)
		if _, wrong := lines.feed(data[:count]); wrong != nil {
			return nil, wrong
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	lines.restart()
	if err := errors.Join(file.Truncate(lines.bytes), file.Chmod(0o600)); err != nil {
		return nil, err
	}
	_, err = file.Seek(lines.bytes, io.SeekStart)
	return lines, err
}

// header is what is read of the first line of an export.
type header struct {
	Record   string `json:"record"`
	Session  string `json:"session"`
	ExportID string `json:"export_id"`
}

func exportHeader(line []byte) (header, error) {
	var found header
	if json.Unmarshal(line, &found) != nil || found.Record != "header" || found.Session == "" {
		return header{}, invalid("export", "it is no export of a session: its first line is no header")
	}
	return found, nil
}

// ImportOptions are the options of [Client.Import].
type ImportOptions struct {
	// Session is the id that it gets; empty: its own.
	Session string
	// RestoreDeleted also imports a session that was deleted in this tenant after the export.
	RestoreDeleted bool
}

// Import imports the file of an export. The session is visible once all of it was verified. Lost
// connections are made again; after an interruption call it again, and it continues.
func (c *Client) Import(ctx context.Context, path string, options *ImportOptions) (*Session, error) {
	file, err := os.Open(path)
	if err != nil {
		if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
			return nil, invalid("path", "%s cannot be read: %v", path, failed.Err)
		}
		return nil, err
	}
	defer file.Close()
	return c.ImportFrom(ctx, file, options)
}

// ImportFrom is [Client.Import] of what can be read again from its beginning.
func (c *Client) ImportFrom(ctx context.Context, reader io.ReadSeeker, options *ImportOptions) (*Session, error) {
	given := orZero(options)
	one := &importing{connection: c.connection, reader: reader, open: &pb.ImportSessionRequest_Open{RestoreDeleted: given.RestoreDeleted}}
	if err := one.rewind(); err != nil {
		return nil, err
	}
	one.open.Session = given.Session
	if given.Session == "" {
		one.open.Session = one.header.Session
	}
	err := one.run(ctx)
	if errors.Is(err, CodeError(codes.AlreadyExists)) {
		// The reply of a stream before may have been lost.
		found, unknown := c.Session(one.open.Session).Get(ctx)
		if unknown == nil && found.GetImportedFrom().GetExportId() == one.header.ExportID {
			err = nil
		}
	}
	if err != nil {
		return nil, err
	}
	return c.Session(one.open.Session), nil
}

// importing sends an export, in one stream or several.
type importing struct {
	connection *connection
	reader     io.ReadSeeker
	lines      *bufio.Reader
	header     header
	open       *pb.ImportSessionRequest_Open
	// The last line that is durable.
	through atomic.Int64
}

// rewind begins to read again, after the first line.
func (i *importing) rewind() error {
	if _, err := i.reader.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("the export cannot be read: %w", err)
	}
	i.lines = bufio.NewReaderSize(i.reader, maxDataBytes)
	first, err := i.lines.ReadSlice('\n')
	if err != nil || len(first) > maxHeaderBytes {
		first = nil
	}
	i.header, err = exportHeader(first)
	i.open.Header = bytes.Clone(first)
	return err
}

func (i *importing) run(ctx context.Context) error {
	pauses, reached := streamBackoff(), int64(0)
	for tries := 1; ; tries++ {
		err := i.once(ctx)
		if err == nil {
			return nil
		}
		known := i.connection.reach.failure(ctx, err)
		if i.through.Load() > reached {
			reached, tries, pauses = i.through.Load(), 1, streamBackoff()
		}
		again := mayPass(known) || known.reason == ReasonImportConflict && reached > 0
		if !again || tries >= maxTransferTries || sleep(ctx, pauses.pause(known)) != nil {
			return known
		}
	}
}

// once sends what is not durable yet over one stream; nil: the session is there.
func (i *importing) once(ctx context.Context) error {
	if err := i.rewind(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var sender sync.WaitGroup
	defer sender.Wait()
	defer cancel(nil)
	stream, err := i.connection.sessions.ImportSession(ctx)
	if err != nil {
		return err
	}
	opening := &pb.ImportSessionRequest{Frame: &pb.ImportSessionRequest_Open_{Open: i.open}}
	if err := stream.Send(opening); err != nil && !isEnd(err) {
		return err
	}
	for {
		response, err := stream.Recv()
		if isEnd(err) {
			err = &Error{code: codes.Unavailable, message: "the service ended the import without a reason"}
		}
		if err != nil {
			// What the sender found out says more than that it left.
			if known := asError(context.Cause(ctx)); known != nil {
				return known
			}
			return err
		}
		switch frame := response.GetFrame().(type) {
		case *pb.ImportSessionResponse_Session:
			return nil
		case *pb.ImportSessionResponse_Opened:
			i.through.Store(frame.Opened.GetThroughLine())
			sender.Go(func() {
				if err := i.send(stream, frame.Opened.GetThroughLine()); err != nil {
					cancel(err)
				}
			})
		case *pb.ImportSessionResponse_Ack:
			i.through.Store(frame.Ack.GetThroughLine())
		}
	}
}

// send sends what comes after a line. The receiver sees why a stream ends.
func (i *importing) send(stream pb.SessionService_ImportSessionClient, after int64) error {
	for line := int64(1); line < after; {
		_, err := i.lines.ReadSlice('\n')
		switch {
		case err == nil:
			line++
		case err != bufio.ErrBufferFull:
			return invalid("export", "the import was continued with a shorter file: it ends before line %d", after)
		}
	}
	data := make([]byte, maxDataBytes)
	for {
		count, err := io.ReadFull(i.lines, data)
		if count > 0 {
			sent := &pb.ImportSessionRequest{Frame: &pb.ImportSessionRequest_Data{Data: data[:count]}}
			if stream.Send(sent) != nil {
				return nil
			}
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			_ = stream.CloseSend()
			return nil
		}
		if err != nil {
			return invalid("export", "it cannot be read: %v", err)
		}
	}
}
