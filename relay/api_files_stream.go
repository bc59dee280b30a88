// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/session"
	"github.com/boxd-dev/boxd/supervisor/sessionfiles"
)

// makeDirectory makes a directory.
func makeDirectory(c *Call) (any, error) {
	a, _, err := fileRequest(c, func(in *api.FileMkdir, _ *session.Session) (*files.Request, []byte, error) {
		p, err := requestPath("path", in.Path, in.PathBase64, "")
		if err != nil {
			return nil, nil, err
		}
		m := &files.Mkdir{Path: p, Mode: 0o755, Parents: !in.NoParents, Existing: in.ExistOK}
		if in.Mode != "" {
			mode, err := permissions("mode", in.Mode)
			if err != nil {
				return nil, nil, err
			}
			m.Mode = mode
		}
		return &files.Request{Mkdir: m}, nil, nil
	})
	return written(a, err)
}

// permissions reads a mode in octal.
func permissions(field, text string) (uint32, error) {
	mode, err := strconv.ParseUint(text, 8, 32)
	if err != nil || mode > 0o777 {
		return 0, fault.Field(field, text, "0000 to 0777, octal")
	}
	return uint32(mode), nil
}

func written(a *files.Answer, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	if a.Write == nil {
		return nil, files.ErrMalformed
	}
	return &api.FileWritten{File: fileAnswer(&a.Write.File), Created: a.Write.Created}, nil
}

// sendFile streams a regular file or a range of it. A failure on the way cuts the response off.
func sendFile(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	query := c.R.URL.Query()
	p, err := requestPath("path", query.Get("path"), query.Get("path_base64"), "")
	if err != nil {
		return nil, err
	}
	var instead func()
	err = c.Sup.Files(c.Context(), s, string(p), func(ctx context.Context, s *session.Session) (err error) {
		instead, err = sendFileOf(ctx, c, s, p)
		return err
	})
	if instead != nil { // not while a stopped session waits for it
		instead()
	}
	return nil, err
}

// sendFileOf is sendFile for a file of a session in which files can be read. instead answers a request that needs no content.
func sendFileOf(ctx context.Context, c *Call, s *session.Session, p []byte) (instead func(), err error) {
	req := &files.Get{Path: p}
	offset, length, part := ParseRange(c.R.Header.Get("Range"))
	if part {
		req.Offset, req.Length = offset, length
	}
	opening, r, err := sessionfiles.ReadStream(ctx, s, sessionfiles.BoxUser, req)
	if err != nil {
		return nil, err
	}
	if since := c.R.Header.Get("If-Range"); part && (since != "" && !Unchanged(since, &opening.File) || opening.File.Size == 0) { // the file has changed, or is empty
		_ = r.Close() // cannot fail
		part = false
		if opening, r, err = sessionfiles.ReadStream(ctx, s, sessionfiles.BoxUser, &files.Get{Path: p}); err != nil {
			return nil, err
		}
	}
	defer r.Close()
	head := c.W.Header()
	head.Set("Accept-Ranges", "bytes")
	head.Set("Last-Modified", opening.File.Time.Truncate(time.Second).Format(http.TimeFormat))
	head.Set("ETag", EntityTag(&opening.File))
	if instead := notSent(c, &opening.File, part && opening.Length == 0); instead != nil { //nolint:contextcheck // it reads headers
		return instead, nil
	}
	head.Set("Content-Type", "application/octet-stream")
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Content-Length", strconv.FormatInt(opening.Length, 10))
	status := http.StatusOK
	if part {
		head.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", opening.Offset, opening.Offset+opening.Length-1, opening.File.Size))
		status = http.StatusPartialContent
	}
	c.limitReadTime()
	c.W.WriteHeader(status)
	if c.R.Method == http.MethodHead {
		return nil, nil // the headers were asked for
	}
	to, stop := newTransfer(ctx, c.W)
	defer stop()
	if _, err := io.CopyBuffer(to, r, make([]byte, files.MaxData)); err != nil {
		c.Log.Debug("a file was not sent completely", "error", err)
		panic(http.ErrAbortHandler) // only this tells a client that there is more
	}
	return nil, nil
}

// notSent returns the answer to a conditional request that needs no content, or to a range outside of the file; nil: it needs content.
func notSent(c *Call, file *files.Entry, outside bool) func() {
	var err error
	status := Precondition(c.R.Header, file)
	switch {
	case status == http.StatusNotModified:
		return func() { c.W.WriteHeader(status) }
	case status == http.StatusPreconditionFailed:
		err = fault.Errorf(fault.Conflict, "the file has changed, its ETag is %s now", EntityTag(file)).
			WithHint("read it without the condition, then use the new ETag")
	case outside:
		status = http.StatusRequestedRangeNotSatisfiable
		c.W.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", file.Size))
		err = fault.Field("Range", c.R.Header.Get("Range"), fmt.Sprintf("within the %d bytes of the file", file.Size))
	default:
		return nil
	}
	problem := c.problem(c.Context(), err)
	problem.Status = status
	return func() { _ = c.send(status, problemMedia, problem) } // the caller may have gone
}

// takeFile streams the body of a request to a file.
func takeFile(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	query := c.R.URL.Query()
	req := &files.Put{}
	if req.Path, err = requestPath("path", query.Get("path"), query.Get("path_base64"), ""); err != nil {
		return nil, err
	}
	missing, err := queryFlag(query, "no_parents")
	if err != nil {
		return nil, err
	}
	req.Parents = !missing
	if text := query.Get("permissions"); text != "" {
		mode, err := permissions("permissions", text)
		if err != nil {
			return nil, err
		}
		req.Mode = &mode
	}
	if req.Xattrs, err = queryXattrs(query); err != nil {
		return nil, err
	}
	body := &feeder{c: c}
	defer body.end()
	a, err := sessionfiles.WriteStream(c.Context(), s, sessionfiles.BoxUser, req, body)
	return written(&files.Answer{Write: a}, err)
}

// queryXattrs reads the extended attributes for a file, nil to leave them as they are.
func queryXattrs(query url.Values) (*files.Xattrs, error) {
	var values map[string]string
	if text := query.Get("xattrs"); text != "" && json.Unmarshal([]byte(text), &values) != nil {
		return nil, fault.Field("xattrs", text, "a JSON object of names and values in base64")
	}
	return xattrsOf(query.Get("xattrs_prefix"), values)
}

// watchHeartbeat is how often a reader of events gets a heartbeat when nothing happens.
const watchHeartbeat = 15 * time.Second

// watchFiles streams the events of a directory as JSON lines.
func watchFiles(c *Call) (any, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	query := c.R.URL.Query()
	req := &files.Watch{}
	if req.Path, err = requestPath("path", query.Get("path"), query.Get("path_base64"), workspace); err != nil {
		return nil, err
	}
	if req.Recursive, err = queryFlag(query, "recursive"); err != nil {
		return nil, err
	}
	if req.Entries, err = queryFlag(query, "entries"); err != nil {
		return nil, err
	}
	if c.R.Method == http.MethodHead {
		c.W.Header().Set("Content-Type", linesMedia)
		c.limitReadTime()
		c.W.WriteHeader(http.StatusOK)
		return nil, nil //nolint:nilnil // the headers were asked for
	}
	release, err := c.Limits.Stream()
	if err != nil {
		return nil, err
	}
	defer release()
	w := &eventLines{c: c}
	if err := w.watch(c.Context(), s, req); err != nil && !w.started {
		return nil, err
	} else if err != nil {
		c.Log.Debug("a watch ended early", "error", err)
		panic(http.ErrAbortHandler) // as in sendFile
	}
	return nil, nil //nolint:nilnil // it has been sent
}

// linesMedia is the media type of JSON lines.
const linesMedia = "application/x-ndjson"

// eventLines is a response of events; started is set by the first one.
type eventLines struct {
	c       *Call
	started bool
}

// watch sends events until there are no more. An error after the first event is a line as well, if the client still reads.
func (w *eventLines) watch(ctx context.Context, s *session.Session, req *files.Watch) error {
	ctx, cancel := context.WithCancel(ctx)
	events, done := make(chan *files.Event), make(chan error, 1)
	go func() {
		done <- sessionfiles.Watch(ctx, s, sessionfiles.BoxUser, req, func(e *files.Event) error {
			select {
			case events <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	ended := false
	defer func() {
		if cancel(); !ended {
			w.c.Log.Debug("the client of a watch has left", "error", <-done) // its program has gone then
		}
	}()
	ticker := time.NewTicker(watchHeartbeat)
	defer ticker.Stop()
	for {
		var err error
		select {
		case e := <-events:
			err = w.line(fileEventAnswer(e))
		case <-ticker.C:
			if w.started {
				err = w.write([]byte{'\n'})
			}
		case err = <-done:
			ended = true
			if w.started && err != nil && ctx.Err() == nil {
				return w.line(&api.FileEvent{Event: api.FileEventError, Problem: w.c.problem(ctx, err)})
			}
			return err
		}
		if err != nil {
			return err
		}
	}
}

func (w *eventLines) line(e *api.FileEvent) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if !w.started {
		w.started = true
		head := w.c.W.Header()
		head.Set("Content-Type", linesMedia)
		head.Set("Cache-Control", "no-store")
		head.Set("X-Content-Type-Options", "nosniff")
	}
	return w.write(append(text, '\n'))
}

func (w *eventLines) write(text []byte) error {
	out := http.NewResponseController(w.c.W)
	_ = out.SetWriteDeadline(time.Now().Add(stallTimeout)) // every connection has deadlines
	if _, err := w.c.W.Write(text); err != nil {
		return err
	}
	return out.Flush()
}
