// SPDX-License-Identifier: Apache-2.0

// Package sessionfiles performs file operations in a box, by a program that runs inside it: see isolation/files.
package sessionfiles

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/files"

	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// User is who operations are performed as.
type User bool

// The users of a box. Root is BoxUser where a box has no root.
const (
	BoxUser User = false
	Root    User = true
)

// Do performs one operation. body is the data of the request, data that of the answer. A failure of the operation is a
// fault.Error of a matching kind, and wraps a *Failure.
func Do(ctx context.Context, s *session.Session, as User, req *files.Request, body []byte) (a *files.Answer, data []byte, err error) {
	limits := &s.Config().Files
	in, err := encode(req, body)
	if err != nil {
		return nil, nil, err
	}
	dir := "" // that paths are relative to; "": the workspace
	if req.Chmod != nil && path.IsAbs(string(req.Chmod.Path)) {
		dir = "/" // no program in the box can make that inaccessible
	}
	internal := session.InternalExec{
		Tool: policy.ToolFiles, Timeout: time.Duration(limits.Timeout), Output: uint64(limits.MaxContent)*2 + files.MaxAnswer,
		Root: (as == Root || req.Diff != nil || req.Discard != nil || req.Snapshot != nil || req.Changes != nil || opens(s, req)) && mayHaveRoot(s),
	}
	if internal.Root { // its paths are absolute, and the workspace may be closed to the box user
		dir = "/"
	}
	r, err := s.Exec(ctx, &session.ExecRequest{Argv: []string{isolation.FilesProgram}, Stdin: in, Dir: dir, Internal: &internal})
	if err == nil && internal.Root && r.Failed != nil && r.Failed.Step == isolation.StepUser {
		s.MarkRootless()
		internal.Root = false
		r, err = s.Exec(ctx, &session.ExecRequest{Argv: []string{isolation.FilesProgram}, Stdin: in, Dir: dir, Internal: &internal})
	}
	if err != nil {
		return nil, nil, err
	}
	var content bytes.Buffer
	a, err = files.Receive(bytes.NewReader(r.Streams[0].Data), &content, int64(limits.MaxContent))
	if err != nil {
		return nil, nil, ended(s, r, limits.Timeout.String(), "files.timeout", err)
	}
	if a.Failure != nil {
		return nil, nil, refusal(a.Failure)
	}
	return a, content.Bytes(), nil
}

// mayHaveRoot reports whether programs of a session may run as root: then archives, diffs and commits are made as root, and include
// what the box user may not read.
func mayHaveRoot(s *session.Session) bool {
	settings := s.Current()
	return !settings.ReadOnlyRoot && !s.IsRootless()
}

// opens reports whether a request changes the permissions of a directory that root of the box may have given away, and that no program
// can replace.
func opens(s *session.Session, req *files.Request) bool {
	if req.Chmod == nil {
		return false
	}
	settings := s.Current()
	at := string(req.Chmod.Path)
	return at == isolation.Workspace || at == settings.HomeDir()
}

func encode(req *files.Request, body []byte) ([]byte, error) {
	head, err := req.Encode()
	if err != nil {
		return nil, fault.Errorf(fault.Invalid, "%w", err).WithHint("request less at once")
	}
	in := bytes.NewBuffer(head)
	w := files.NewWriter(in)
	_, err = w.Write(body)
	err = cmp.Or(err, w.End())
	return in.Bytes(), err
}

// Pack writes an archive to w as it is created. After an error, w has an incomplete archive without an end.
func Pack(ctx context.Context, s *session.Session, req *files.Pack, w io.Writer) (*files.Archived, error) {
	limits := &s.Config().Files
	req.Bounds = bounds(limits)
	if !path.IsAbs(string(req.Path)) {
		req.Path = append([]byte(isolation.Workspace+"/"), req.Path...)
	}
	in, err := encode(&files.Request{Pack: req}, nil)
	if err != nil {
		return nil, err
	}
	c, err := start(ctx, s, Root, time.Duration(s.Config().Files.ArchiveTimeout), &session.ProcessRequest{StdinData: in})
	if err != nil {
		return nil, err
	}
	defer c.close()
	// Every entry has a header, and some have a second one for long names.
	a, err := files.Receive(c, w, 2*int64(limits.ArchiveBytes)+int64(limits.ArchiveEntries)*64<<10)
	return c.archived(ctx, a, err)
}

// Commit writes an archive of a session's writable root, as Pack does: see files.Commit. The bounds are the caller's.
func Commit(ctx context.Context, s *session.Session, b files.Bounds, w io.Writer) (*files.Archived, error) {
	in, err := encode(&files.Request{Commit: &files.Commit{Image: []byte(isolation.RootImage), Changed: []byte(isolation.RootChanged), Bounds: b}}, nil)
	if err != nil {
		return nil, err
	}
	c, err := start(ctx, s, Root, time.Duration(s.Config().Files.ArchiveTimeout), &session.ProcessRequest{StdinData: in})
	if err != nil {
		return nil, err
	}
	defer c.close()
	a, err := files.Receive(c, w, b.Bytes+int64(b.Entries)*headers)
	return c.archived(ctx, a, err)
}

// headers is the most that the headers of an entry take, on average.
const headers = 2 << 10

// Unpack unpacks the archive from r into a directory: completely or not at all.
func Unpack(ctx context.Context, s *session.Session, as User, req *files.Unpack, r io.Reader) (*files.Archived, error) {
	a, err := unpack(ctx, s, as, req, r)
	if _, answered := errors.AsType[*Failure](err); err != nil && !answered {
		// It was interrupted and has left what it had created. That is removed now, or by the next archive unpacked there.
		_, _, _ = Do(context.WithoutCancel(ctx), s, as, &files.Request{Sweep: &files.Sweep{Path: req.Path}}, nil)
	}
	return a, err
}

func unpack(ctx context.Context, s *session.Session, as User, req *files.Unpack, r io.Reader) (*files.Archived, error) {
	req.Bounds = bounds(&s.Config().Files)
	head, err := (&files.Request{Unpack: req}).Encode()
	if err != nil {
		return nil, fault.Errorf(fault.Invalid, "%w", err).WithHint("request less at once")
	}
	// A caller that hangs up does not kill the program: finding the archive incomplete, that removes what it has created.
	after, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	c, err := start(after, s, as, time.Duration(s.Config().Files.ArchiveTimeout), &session.ProcessRequest{Stdin: true})
	if err != nil {
		return nil, err
	}
	defer c.close()
	a, err := c.exchange(head, r, "the archive")
	return c.archived(ctx, a, err)
}

func bounds(l *policy.FileLimits) files.Bounds {
	return files.Bounds{Bytes: int64(l.ArchiveBytes), Entries: l.ArchiveEntries, File: int64(l.ArchiveFile)}
}

// conversation is a program with streamed input and output.
type conversation struct {
	s       *session.Session
	p       *process.Process
	a       *process.Attachment
	ctx     context.Context //nolint:containedctx // ends with close
	close   func()          // ends the program if it still runs
	sent    int64           // bytes written to its stdin
	content []byte          // of its stdout: what Read has not returned yet
}

// start starts the program with a timeout; 0: none.
func start(ctx context.Context, s *session.Session, as User, timeout time.Duration, req *session.ProcessRequest) (*conversation, error) {
	internal := session.InternalExec{Tool: policy.ToolFiles, Timeout: timeout, Single: timeout == 0}
	if as == Root && mayHaveRoot(s) {
		of := internal
		of.Root, req.Exec.Dir = true, "/"
		c, err := startAs(ctx, s, &of, req)
		if err != nil {
			return nil, err
		}
		if !session.HasNoRoot(c.p.Started(ctx)) {
			return c, nil
		}
		c.close()
		s.MarkRootless()
		req.Exec.Dir = ""
	}
	return startAs(ctx, s, &internal, req)
}

func startAs(ctx context.Context, s *session.Session, internal *session.InternalExec, req *session.ProcessRequest) (*conversation, error) {
	req.Unlisted, req.Exec.Argv, req.Exec.Internal = true, []string{isolation.FilesProgram}, internal
	p, _, err := s.StartProcess(ctx, req)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	remove := func() {
		cancel()
		_ = s.RemoveProcess(context.WithoutCancel(ctx), p) // it can fail only because its context ends
	}
	a, err := p.Attach(ctx, process.AttachOptions{From: new([2]int64), Write: req.Stdin, Lossless: true})
	if err != nil {
		remove()
		return nil, err
	}
	return &conversation{s: s, p: p, a: a, ctx: ctx, close: func() {
		cancel()
		a.Close()
		remove()
	}}, nil
}

// exchange sends a request with what r has, and receives the answer.
func (c *conversation) exchange(head []byte, r io.Reader, what string) (*files.Answer, error) {
	sent := make(chan error, 1)
	go c.send(head, r, what, sent) // ends with the program, by close
	a, err := files.Receive(c, io.Discard, 0)
	select {
	case broken := <-sent: // the caller's error is the cause of the program's
		if broken != nil {
			err = broken
		}
	default:
	}
	return a, err
}

// Read reads the program's standard output; the program blocks while nothing reads.
func (c *conversation) Read(b []byte) (int, error) {
	for len(c.content) == 0 {
		chunk, err := c.a.Next(c.ctx)
		switch {
		case err != nil:
			return 0, err
		case chunk.Gap > 0: // impossible: nothing is dropped before a lossless reader has it
			return 0, files.ErrMalformed
		case chunk.Stream == 0:
			c.content = chunk.Data
		}
	}
	n := copy(b, c.content)
	c.content = c.content[n:]
	return n, nil
}

// Write writes to the program's standard input, and blocks while that does not read. EPIPE means that it has ended.
func (c *conversation) Write(b []byte) (int, error) {
	select {
	case <-c.p.Done():
		return 0, unix.EPIPE
	default:
	}
	if err := c.a.Write(c.ctx, c.sent, b); err != nil {
		return 0, err
	}
	c.sent += int64(len(b))
	return len(b), nil
}

// send passes a request and the data that follows to the program, and sends to sendErr what was wrong with the data, which what
// names. It always closes the program's standard input, but marks the end of the data only if that was complete.
func (c *conversation) send(head []byte, r io.Reader, what string, sendErr chan<- error) {
	sendErr <- c.pass(head, r, what) // first: once its input is closed, the program's error is less specific
	_ = c.a.CloseWrite()             // fails if it has ended
}

// pass is send without the end of the input.
func (c *conversation) pass(head []byte, r io.Reader, what string) error {
	if _, err := c.Write(head); err != nil {
		return nil //nolint:nilerr // it has ended, and has said why
	}
	w := files.NewWriter(c)
	buf := make([]byte, files.MaxData)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return nil //nolint:nilerr // as above
			}
		}
		if errors.Is(err, io.EOF) {
			_ = w.End() // as above
			return nil
		}
		if err != nil {
			f := fault.Errorf(fault.Invalid, "read %s: %w", what, err)
			f.Field = "body"
			return f
		}
	}
}

// archived returns the result of an archive operation.
func (c *conversation) archived(ctx context.Context, a *files.Answer, err error) (*files.Archived, error) {
	a, err = c.outcome(ctx, a, err)
	if err == nil && a.Archive == nil {
		return nil, files.ErrMalformed
	}
	if err != nil {
		return nil, err
	}
	return a.Archive, nil
}

// outcome is the answer of the program, or why there is none: the program's failure, or how it ended.
func (c *conversation) outcome(ctx context.Context, a *files.Answer, err error) (*files.Answer, error) {
	if err == nil && a.Failure != nil {
		return nil, refusal(a.Failure)
	}
	if err == nil || !errors.Is(err, files.ErrMalformed) {
		return a, err
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) { // the answer is malformed, and the program may still run
		return nil, fmt.Errorf("session %q: %w", c.s.ID, err)
	}
	r, werr := c.s.ProcessEnd(ctx, c.p)
	if werr != nil {
		return nil, werr
	}
	return nil, ended(c.s, r, c.s.Config().Files.ArchiveTimeout.String(), "files.archive_timeout", err)
}

// ended says why a program has not answered, or not in a valid way.
func ended(s *session.Session, r *session.Result, timeout, key string, err error) error {
	switch r.Status {
	case session.StatusTimedOut:
		return fault.Errorf(fault.Exhausted, "it took longer than %s (%s)", timeout, key).WithHint("use a narrower path, or a lower limit")
	case session.StatusOOMKilled:
		return fault.Errorf(fault.Exhausted, "not enough memory in the session for this file operation").WithHint("request less, or raise its limit: boxctl set BOX --memory SIZE")
	case session.StatusCanceled:
		return s.Canceled()
	case session.StatusLost:
		return session.NotFoundError(s.ID)
	case session.StatusStartFailed:
		if errors.Is(r.Failed, unix.ENOENT) {
			return fault.Errorf(fault.Unsupported, "this box has no helper for file operations: %w", r.Failed).WithHint("remove it and create a new one: it was made by an older boxd")
		}
		if r.Failed.Step == isolation.StepDirectory && errors.Is(r.Failed, unix.EACCES) {
			return fault.Errorf(fault.Conflict, "a program in the box has closed access to %s: %w", r.Failed.Item, unix.EACCES).
				WithHint("make it accessible: boxctl fs chmod %s 755 %s", s.ID, r.Failed.Item)
		}
		return fault.Errorf(fault.Unavailable, "cannot start the helper for file operations: %w", r.Failed).WithHint("try again; if it fails again, see boxctl doctor")
	case session.StatusSignaled: // by a program of the box, or by the kernel for lack of memory
		return fault.Errorf(fault.Unavailable, "the helper for file operations was ended by %s", r.Signal).WithHint("try again; a program of the box ends it, or a limit of the session: boxctl inspect BOX")
	case session.StatusExited:
	}
	if r.Streams[1].Total > 0 && r.Status == session.StatusExited && r.ExitCode != 0 { // the Go runtime has written to stderr
		return fault.Errorf(fault.Exhausted, "the helper for file operations failed").WithHint("the session may be at its limit of processes or memory: boxctl inspect BOX")
	}
	return fmt.Errorf("session %q: %s: %w", s.ID, r.Status, err)
}

// refusal turns a Failure into an error that a caller can act on. Its texts come from a box.
func refusal(f *files.Failure) error {
	f.Text = plain(f.Text)
	e := fault.Errorf(kindOf(f.Kind), "%w", &Failure{f}).WithHint("%s", cmp.Or(plain(f.Hint), hints()[f.Kind]))
	e.Field, e.Allowed = plain(f.Field), plain(f.Allowed)
	return e
}

// hints are the hints where boxfiles gives none.
func hints() map[files.Kind]string {
	return map[files.Kind]string{
		files.NotFound: "list or glob show what exists", files.Exists: "overwrite replaces files; for others choose another name",
		files.IsDirectory: "name a file", files.NotDirectory: "name a directory, with directories above it", files.NotRegular: "only regular files have content",
		files.TooLarge: "use an archive, within the limits of [files] in box.toml", files.TooMany: "ask for less", files.Changed: "read it again",
		files.NotPermitted: "operations run as the box user, who may not do that", files.ReadOnly: "write below /workspace, the home directory or /tmp",
		files.NoSpace: "remove something, or give the session more room", files.NotEmpty: "recursive also removes its content", files.Busy: "something is mounted there, or it is being executed",
		files.BadPath: "a path has at most 4095 bytes, and no name more than 255", files.BadArchive: "create it again, with plain names and only internal links", files.Unsupported: "use another directory, such as /workspace",
		files.Broken: "try again",
	}
}

// Failure is an operation that boxfiles could not perform, as readable text.
type Failure struct{ *files.Failure }

func (f *Failure) Error() string {
	if len(f.Path) == 0 {
		return f.Text
	}
	return fault.Show(plain(string(f.Path))) + ": " + f.Text
}

// plain replaces control characters, which a terminal might interpret.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '�'
		}
		return r
	}, strings.ToValidUTF8(text, "�"))
}

func kindOf(kind files.Kind) fault.Kind {
	switch kind {
	case files.NotFound:
		return fault.NotFound
	case files.NotPermitted, files.ReadOnly:
		return fault.Denied
	case files.TooMany, files.NoSpace:
		return fault.Exhausted
	case files.TooLarge, files.BadPath, files.BadPattern, files.BadArchive, files.BadRequest:
		return fault.Invalid
	case files.Unsupported:
		return fault.Unsupported
	case files.Broken:
		return fault.Unavailable
	case files.Exists, files.IsDirectory, files.NotDirectory, files.NotRegular, files.Binary, files.NoMatch, files.NotUnique, files.Changed,
		files.NotEmpty, files.Busy, files.OtherDisk:
	}
	return fault.Conflict
}
