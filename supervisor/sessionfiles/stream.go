// SPDX-License-Identifier: Apache-2.0

// Streaming of files of any size, and events in directories.

package sessionfiles

import (
	"context"
	"io"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// ReadStream streams a regular file of any size, or a part of it. What is known of the file is returned at once; the reader
// returns io.EOF only after all of it, and must be closed. Both end with ctx, or after files.archive_timeout.
func ReadStream(ctx context.Context, s *session.Session, as User, req *files.Get) (*files.Opening, io.ReadCloser, error) {
	in, err := encode(&files.Request{Get: req}, nil)
	if err != nil {
		return nil, nil, err
	}
	c, err := start(ctx, s, as, time.Duration(s.Config().Files.ArchiveTimeout), &session.ProcessRequest{StdinData: in})
	if err != nil {
		return nil, nil, err
	}
	r := &fileReader{c: c, ctx: ctx, in: files.NewIncoming(c)}
	p, err := r.in.Next()
	if err == nil && (p.Notice == nil || p.Notice.Opening == nil) && p.Answer == nil {
		err = files.ErrMalformed
	}
	if err != nil || p.Answer != nil {
		_, err = c.outcome(ctx, p.Answer, err)
		if err == nil {
			err = files.ErrMalformed
		}
		c.close()
		return nil, nil, err
	}
	r.left = p.Notice.Opening.Length
	return p.Notice.Opening, r, nil
}

// fileReader is the reader of ReadStream.
type fileReader struct {
	c    *conversation
	ctx  context.Context //nolint:containedctx // that of its ReadStream
	in   *files.Incoming
	left int64  // bytes yet to come
	data []byte // received, but not returned yet
	err  error  // returned after data
}

func (r *fileReader) Read(b []byte) (int, error) {
	for len(r.data) == 0 && r.err == nil && len(b) > 0 {
		r.next()
	}
	n := copy(b, r.data)
	r.data = r.data[n:]
	if n > 0 || len(b) == 0 {
		return n, nil
	}
	return 0, r.err
}

func (r *fileReader) next() {
	p, err := r.in.Next()
	switch {
	case err == nil && p.Notice != nil:
		err = files.ErrMalformed
		fallthrough
	case err != nil, p.Answer != nil:
		if _, err = r.c.outcome(r.ctx, p.Answer, err); err == nil && r.left > 0 {
			err = fault.Errorf(fault.Conflict, "the file has become shorter while it was read: %d bytes are missing", r.left).WithHint("read it again")
		}
		if r.err = err; err == nil {
			r.err = io.EOF
		}
	case int64(len(p.Data)) > r.left:
		r.err = files.ErrTooMuch
	default:
		r.left -= int64(len(p.Data))
		r.data = p.Data
	}
}

// Close ends the stream, and the program if it still runs. No call of Read may be under way.
func (r *fileReader) Close() error {
	r.c.close()
	return nil
}

// WriteStream writes what r has to a file as it comes, see files.Put. If r fails or ctx ends, what was written stays. A failed
// file operation is a *Failure, of kind files.NoSpace if there is no space. r may be read once more after the return.
func WriteStream(ctx context.Context, s *session.Session, as User, req *files.Put, r io.Reader) (*files.WriteAnswer, error) {
	head, err := (&files.Request{Put: req}).Encode()
	if err != nil {
		return nil, fault.Errorf(fault.Invalid, "%w", err).WithHint("request less at once")
	}
	c, err := start(ctx, s, as, time.Duration(s.Config().Files.ArchiveTimeout), &session.ProcessRequest{Stdin: true})
	if err != nil {
		return nil, err
	}
	defer c.close()
	a, err := c.exchange(head, r, "the content")
	if a, err = c.outcome(ctx, a, err); err != nil {
		return nil, err
	}
	if a.Write == nil {
		return nil, files.ErrMalformed
	}
	return a.Write, nil
}

// maxWatched is how many directories one watch may cover.
const maxWatched = 8192

// Watch calls each for every event in a directory of a session, in order, starting with files.Watching once the watch is set
// up. While each has not returned, the kernel queues some 16,000 events; if there are more, files.Overflow follows. Watch
// returns nil when the directory is gone or renamed, what each has returned, or another error: that of ctx, or a *Failure of
// kind files.TooMany if there are more than maxWatched directories. It counts as an execution, and keeps the session in use.
func Watch(ctx context.Context, s *session.Session, as User, req *files.Watch, each func(*files.Event) error) error {
	release, err := s.ReserveWatch()
	if err != nil {
		return err
	}
	defer release()
	req.Limit = maxWatched
	in, err := encode(&files.Request{Watch: req}, nil)
	if err != nil {
		return err
	}
	c, err := start(ctx, s, as, 0, &session.ProcessRequest{StdinData: in})
	if err != nil {
		return err
	}
	defer c.close()
	for from := files.NewIncoming(c); ; {
		p, err := from.Next()
		if err == nil && p.Answer == nil && (p.Notice == nil || p.Notice.Opening != nil) {
			err = files.ErrMalformed
		}
		if err != nil || p.Answer != nil {
			_, err = c.outcome(ctx, p.Answer, err)
			return err
		}
		for i := range p.Notice.Events {
			if err := each(&p.Notice.Events[i]); err != nil {
				return err
			}
		}
	}
}
