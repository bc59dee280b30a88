// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/output"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/e2b/protocol"
	"github.com/boxd-dev/boxd/relay/e2b/wire"
	"github.com/boxd-dev/boxd/supervisor/process"
	"github.com/boxd-dev/boxd/supervisor/session"
	"github.com/boxd-dev/boxd/supervisor/sessionfiles"
)

// Labels of processes that a client has started.
const (
	labelTag  = "e2b.tag"
	processID = "e2b-" // begins their ids
)

// maxChunk is how many bytes of output a message has at most.
const maxChunk = 32 << 10

// Headers of streams.
const (
	headerPing    = "Keepalive-Ping-Interval" // seconds without a message after which there is one that says nothing
	headerTimeout = "Connect-Timeout-Ms"
	defaultPing   = 90 * time.Second
)

// headers has streams know what their client has said. The time that it gives a stream ends that, and the program: see
// processRequest.
type headers struct{}

// WrapUnary leaves calls as they are.
func (headers) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc { return next }

// WrapStreamingClient leaves calls as they are.
func (headers) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler puts the header of a request into the context of its stream.
func (headers) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return next(context.WithValue(ctx, headerKeyType{}, conn.RequestHeader()), conn)
	}
}

// headerKeyType is the context key of the header of a stream.
type headerKeyType struct{}

func header(ctx context.Context) http.Header {
	h, _ := ctx.Value(headerKeyType{}).(http.Header)
	return h
}

// processService is the processes of a sandbox.
type processService struct{ server *Server }

// user makes the user that a header names the one of the request, see become.
func (sb *sandbox) user(h http.Header) error {
	name, err := basicUser(h)
	if err != nil {
		return err
	}
	return sb.become(name)
}

// basicUser is the user that a request names; "": it names none.
func basicUser(h http.Header) (string, error) {
	text, ok := strings.CutPrefix(h.Get("Authorization"), "Basic ")
	if !ok {
		return "", nil
	}
	pair, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return "", connect.NewError(connect.CodeUnauthenticated, errors.New("the header Authorization is not Basic base64(NAME:)"))
	}
	name, _, _ := strings.Cut(string(pair), ":")
	return name, nil
}

// become makes a user the one of the request: its paths and files are that user's. It refuses a user that a sandbox does not have.
// Where no program may be root of the box, root is a name of the box user.
func (sb *sandbox) become(name string) error {
	sb.root = name == session.RootUser && sb.MayBeRoot()
	if name == "" || name == "root" || name == "user" || name == sb.userName() {
		return nil
	}
	return connect.NewError(connect.CodeUnauthenticated, fmt.Errorf("invalid username: a sandbox has the users user and root, not %s", fault.Show(name)))
}

// variable is the value that every program of the sandbox has of a variable.
func (sb *sandbox) variable(name string) string {
	for _, pair := range sb.Environment() {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
}

// as is who the operations on files of the request are performed as.
func (sb *sandbox) as() sessionfiles.User { return sessionfiles.User(sb.root) }

// dir is where programs start and relative paths begin.
func (sb *sandbox) dir() string { return cmp.Or(sb.template.Cwd, sb.home()) }

// home is the home directory of the user of the request.
func (sb *sandbox) home() string {
	if sb.root {
		return session.RootHome
	}
	return sb.variable("HOME")
}

func (sb *sandbox) userName() string { return sb.variable("USER") }

// path makes a path absolute as envd does: ~ is the home directory.
func (sb *sandbox) path(text string) string {
	switch {
	case text == "~":
		return sb.home()
	case strings.HasPrefix(text, "~/"):
		return path.Join(sb.home(), text[2:])
	case strings.HasPrefix(text, "/"):
		return path.Clean(text)
	}
	return path.Join(sb.dir(), text)
}

// List lists the processes that clients have started and that live.
func (p *processService) List(ctx context.Context, _ *protocol.ListRequest) (*protocol.ListResponse, error) {
	list := &protocol.ListResponse{}
	for _, proc := range of(ctx).Processes() {
		info := proc.Info()
		if !strings.HasPrefix(info.ID, processID) || info.State == process.StateEnded || len(info.Argv) == 0 {
			continue
		}
		dir := info.Dir
		entry := &protocol.ProcessInfo{Pid: info.PID, Config: &protocol.ProcessConfig{Cmd: info.Argv[0], Args: info.Argv[1:], Cwd: &dir}}
		if tag, ok := info.Labels[labelTag]; ok {
			entry.Tag = &tag
		}
		list.Processes = append(list.Processes, entry)
	}
	return list, nil
}

// Start starts a process and sends what it writes.
func (p *processService) Start(ctx context.Context, req *protocol.StartRequest, stream *connect.ServerStream[protocol.StartResponse]) error {
	sb := of(ctx)
	release, err := sb.limits.Stream()
	if err != nil {
		return p.server.rpcError(ctx, err)
	}
	defer release()
	start, err := sb.processRequest(header(ctx), req)
	if err != nil {
		return p.server.rpcError(ctx, err)
	}
	if n, ok := ctx.Value(notedKey{}).(*noted); ok {
		n.what.Argv = start.Exec.Argv
	}
	proc, _, err := sb.StartProcess(ctx, start)
	if err == nil && sb.root && session.HasNoRoot(proc.Started(ctx)) {
		sb.MarkRootless()
		_ = sb.RemoveProcess(context.WithoutCancel(ctx), proc) // it has not started
		sb.root = false
		if start, err = sb.startRequest(header(ctx), req); err == nil {
			proc, _, err = sb.StartProcess(ctx, start)
		}
	}
	if err != nil {
		return p.server.startError(ctx, sb, err)
	}
	if _, failed := errors.AsType[*isolation.StepError](proc.Started(ctx)); failed {
		return p.server.startFailed(ctx, sb, proc)
	}
	out := &outgoing{server: p.server, sb: sb, process: proc, terminal: req.Pty != nil, from: &[2]int64{}, send: func(e *protocol.ProcessEvent) error {
		return stream.Send(&protocol.StartResponse{Event: e})
	}}
	return out.run(ctx)
}

// Connect sends what a process writes from now on.
func (p *processService) Connect(ctx context.Context, req *protocol.ConnectRequest, stream *connect.ServerStream[protocol.ConnectResponse]) error {
	sb := of(ctx)
	release, err := sb.limits.Stream()
	if err != nil {
		return p.server.rpcError(ctx, err)
	}
	defer release()
	proc, err := sb.selected(req.Process)
	if err != nil {
		return err
	}
	out := &outgoing{server: p.server, sb: sb, process: proc, terminal: proc.Info().Terminal != nil, send: func(e *protocol.ProcessEvent) error {
		return stream.Send(&protocol.ConnectResponse{Event: e})
	}}
	return out.run(ctx)
}

// processRequest is what a client asks for as boxd has it.
func (sb *sandbox) processRequest(h http.Header, req *protocol.StartRequest) (*session.ProcessRequest, error) {
	config := req.Process
	if config == nil || config.Cmd == "" {
		return nil, fault.Field("process.cmd", "", "the program to start")
	}
	if err := sb.user(h); err != nil {
		return nil, err
	}
	return sb.startRequest(h, req)
}

// startRequest is processRequest once the user of the request is known.
func (sb *sandbox) startRequest(h http.Header, req *protocol.StartRequest) (*session.ProcessRequest, error) {
	config := req.Process
	name, err := basicUser(h)
	if err != nil {
		return nil, err
	}
	env := maps.Clone(config.Envs)
	user := ""
	if sb.root {
		user = session.RootUser
	} else if name != "" && name != sb.userName() {
		if env == nil {
			env = map[string]string{}
		}
		for _, variable := range []string{"USER", "LOGNAME"} {
			if _, given := config.Envs[variable]; !given {
				env[variable] = name
			}
		}
	}
	dir := sb.dir()
	if config.Cwd != nil && *config.Cwd != "" {
		dir = sb.path(*config.Cwd)
	}
	start := &session.ProcessRequest{
		ID: processID + strings.ToLower(rand.Text()[:16]), Managed: true, Awaited: true,
		Exec:  session.ExecRequest{Argv: append([]string{config.Cmd}, config.Args...), Env: env, User: user, Dir: dir, Existing: true},
		Stdin: req.Pty == nil && (req.Stdin == nil || *req.Stdin),
	}
	if req.Tag != nil {
		start.Labels = map[string]string{labelTag: *req.Tag}
	}
	if req.Pty != nil {
		size := req.Pty.GetSize()
		if start.Terminal, err = terminal(size); err != nil {
			return nil, err
		}
	}
	if text := h.Get(headerTimeout); text != "" {
		ms, err := strconv.ParseInt(text, 10, 64)
		if err != nil || ms < 0 {
			return nil, fault.Field(headerTimeout, text, "a number of milliseconds, 0 for no limit")
		}
		if ms > 0 {
			d := quantity.Duration(time.Duration(ms) * time.Millisecond)
			start.Exec.Timeout = &d
		}
	}
	return start, nil
}

// terminal is the size of one.
func terminal(size *protocol.PTY_Size) (*process.Size, error) {
	if size == nil || size.Rows == 0 || size.Cols == 0 || size.Rows > 0xffff || size.Cols > 0xffff {
		return nil, fault.Field("pty.size", fmt.Sprint(size.GetCols(), "x", size.GetRows()), "columns and rows, 1 to 65535")
	}
	return &process.Size{Rows: uint16(size.Rows), Cols: uint16(size.Cols)}, nil
}

// startError is why a process was not started. What is wrong with the program is wrong with the request.
func (s *Server) startError(ctx context.Context, sb *sandbox, err error) error {
	if lost(sb.Session, err) {
		return connect.NewError(connect.CodeUnavailable, errors.New(strings.ToLower(wire.GoneMessage)))
	}
	if step, ok := errors.AsType[*isolation.StepError](err); ok {
		return connect.NewError(connect.CodeInvalidArgument, step)
	}
	return s.rpcError(ctx, err)
}

// startFailed forgets a process that could not be started, and says why.
func (s *Server) startFailed(ctx context.Context, sb *sandbox, proc *process.Process) error {
	err := proc.Started(ctx)
	_ = sb.RemoveProcess(context.WithoutCancel(ctx), proc) // it has ended
	return s.startError(ctx, sb, err)
}

// selected finds a living process.
func (sb *sandbox) selected(by *protocol.ProcessSelector) (*process.Process, error) {
	for _, proc := range sb.Processes() {
		info := proc.Info()
		if !strings.HasPrefix(info.ID, processID) || info.State == process.StateEnded {
			continue
		}
		switch which := by.GetSelector().(type) {
		case *protocol.ProcessSelector_Pid:
			if info.PID == which.Pid {
				return proc, nil
			}
		case *protocol.ProcessSelector_Tag:
			if tag, ok := info.Labels[labelTag]; ok && tag == which.Tag {
				return proc, nil
			}
		default:
			return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("process: must be a pid or a tag"))
		}
	}
	what := fmt.Sprintf("pid %d", by.GetPid())
	if _, ok := by.GetSelector().(*protocol.ProcessSelector_Tag); ok {
		what = "tag " + fault.Show(by.GetTag())
	}
	return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process with %s not found", what))
}

// outgoing is a stream of what a process writes.
type outgoing struct {
	server   *Server
	sb       *sandbox
	process  *process.Process
	terminal bool
	from     *[2]int64 // nil: from now on
	send     func(*protocol.ProcessEvent) error
}

// ping is how long nothing may be sent.
func ping(ctx context.Context) time.Duration {
	if n, err := strconv.ParseInt(header(ctx).Get(headerPing), 10, 32); err == nil && n > 0 {
		return time.Duration(n) * time.Second
	}
	return defaultPing
}

// run sends all of it. The process goes on if its client goes; one that ends is forgotten once its end was sent.
func (o *outgoing) run(ctx context.Context) error {
	at, err := o.process.Attach(ctx, process.AttachOptions{From: o.from, Lossless: true})
	if err != nil {
		return o.server.rpcError(ctx, err)
	}
	defer at.Close()
	if err := o.send(&protocol.ProcessEvent{Event: &protocol.ProcessEvent_Start{Start: &protocol.ProcessEvent_StartEvent{Pid: o.process.Info().PID}}}); err != nil {
		return err
	}
	for {
		chunk, err := o.next(ctx, at)
		switch {
		case errors.Is(err, io.EOF):
			return o.end(ctx)
		case err != nil:
			return o.server.rpcError(ctx, err)
		}
		for data := chunk.Data; len(data) > 0; {
			n := min(len(data), maxChunk)
			if err := o.send(o.data(chunk.Stream, data[:n])); err != nil {
				return err
			}
			data = data[n:]
		}
	}
}

// next waits for output, and says meanwhile that there is none.
func (o *outgoing) next(ctx context.Context, at *process.Attachment) (output.Chunk, error) {
	for {
		timeoutCtx, cancel := context.WithTimeout(ctx, ping(ctx))
		chunk, err := at.Next(timeoutCtx)
		silent := timeoutCtx.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !silent || !errors.Is(err, context.DeadlineExceeded) {
			return chunk, err
		}
		if err := o.send(&protocol.ProcessEvent{Event: &protocol.ProcessEvent_Keepalive{Keepalive: &protocol.ProcessEvent_KeepAlive{}}}); err != nil {
			return chunk, err
		}
	}
}

// data is output as a message.
func (o *outgoing) data(stream int, data []byte) *protocol.ProcessEvent {
	d := &protocol.ProcessEvent_DataEvent{}
	switch {
	case o.terminal:
		d.Output = &protocol.ProcessEvent_DataEvent_Pty{Pty: data}
	case stream == 0:
		d.Output = &protocol.ProcessEvent_DataEvent_Stdout{Stdout: data}
	default:
		d.Output = &protocol.ProcessEvent_DataEvent_Stderr{Stderr: data}
	}
	return &protocol.ProcessEvent{Event: &protocol.ProcessEvent_Data{Data: d}}
}

// end says how the process has ended, and forgets it.
func (o *outgoing) end(ctx context.Context) error {
	result, err := o.sb.ProcessEnd(ctx, o.process)
	if err != nil {
		return o.server.rpcError(ctx, err)
	}
	defer func() { _ = o.sb.RemoveProcess(context.WithoutCancel(ctx), o.process) }() // it has ended
	if result.Status == session.StatusTimedOut {
		return connect.NewError(connect.CodeDeadlineExceeded, fmt.Errorf("the process was killed after its timeout of %v", result.Timeout))
	}
	return o.send(&protocol.ProcessEvent{Event: &protocol.ProcessEvent_End{End: ended(result)}})
}

// ended is the end of a process in words that clients know.
func ended(r *session.Result) *protocol.ProcessEvent_EndEvent {
	e := &protocol.ProcessEvent_EndEvent{ExitCode: int32(r.ExitCode), Exited: true, Status: "exit status " + strconv.Itoa(r.ExitCode)}
	if r.Signal != "" {
		e.ExitCode, e.Exited = -1, false
		e.Status = "signal: " + signalText(r.Signal)
	}
	if r.OOM != nil && r.OOM.Kills > 0 {
		e.Status += fmt.Sprintf(" (the limit of %v of memory was reached)", r.OOM.Limit)
	}
	if e.ExitCode != 0 {
		text := e.Status
		e.Error = &text
	}
	return e
}

// signalText is a signal as signal(7) describes it, "killed" for SIGKILL.
func signalText(name string) string {
	if n := unix.SignalNum(name); n != 0 {
		return n.String()
	}
	return name
}

// write gives a process input.
func (p *processService) write(ctx context.Context, proc *process.Process, in *protocol.ProcessInput) error {
	var data []byte
	terminal := proc.Info().Terminal != nil
	switch what := in.GetInput().(type) {
	case *protocol.ProcessInput_Stdin:
		if data = what.Stdin; terminal {
			return connect.NewError(connect.CodeInternal, errors.New("the process has a terminal: send pty input"))
		}
		if !proc.Info().Stdin {
			return connect.NewError(connect.CodeInternal, errors.New("the standard input of the process is closed: it was started with stdin = false"))
		}
	case *protocol.ProcessInput_Pty:
		if data = what.Pty; !terminal {
			return connect.NewError(connect.CodeInternal, errors.New("the process has no terminal: send stdin input"))
		}
	default:
		return connect.NewError(connect.CodeInvalidArgument, errors.New("input: must be stdin or pty"))
	}
	return p.input(ctx, proc, func(at *process.Attachment) error { return at.Write(ctx, at.Taken(), data) })
}

// input attaches to the input of a process for what is done with it. Requests that come at the same time take turns, since a
// process has one writer, who would be cut off by the next in the middle of what it writes.
func (p *processService) input(ctx context.Context, proc *process.Process, do func(*process.Attachment) error) error {
	done, err := p.server.inputs.take(ctx, proc)
	if err != nil {
		return p.server.rpcError(ctx, err)
	}
	defer done()
	at, err := proc.Attach(ctx, process.AttachOptions{Write: true, TakeOver: true})
	if err != nil {
		return p.server.rpcError(ctx, err)
	}
	defer at.Close()
	return p.server.rpcError(ctx, do(at))
}

// turns lets those who write to one process do so one after another.
type turns struct {
	mu  sync.Mutex
	all map[*process.Process]*turn // of those that somebody writes to, or waits for
}

// turn is held by whoever has put a word into it.
type turn struct {
	sem     chan struct{}
	waiting int // and the holder
}

// take waits for the turn of a process; done must follow.
func (t *turns) take(ctx context.Context, proc *process.Process) (done func(), err error) {
	t.mu.Lock()
	mine := t.all[proc]
	if mine == nil {
		mine = &turn{sem: make(chan struct{}, 1)}
		t.all[proc] = mine
	}
	mine.waiting++
	t.mu.Unlock()
	release := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if mine.waiting--; mine.waiting == 0 {
			delete(t.all, proc)
		}
	}
	select {
	case mine.sem <- struct{}{}:
		return func() { <-mine.sem; release() }, nil
	case <-ctx.Done():
		release()
		return nil, ctx.Err()
	}
}

// SendInput gives a process input.
func (p *processService) SendInput(ctx context.Context, req *protocol.SendInputRequest) (*protocol.SendInputResponse, error) {
	proc, err := of(ctx).selected(req.Process)
	if err != nil {
		return nil, err
	}
	return &protocol.SendInputResponse{}, p.write(ctx, proc, req.Input)
}

// StreamInput gives a process input for as long as its client has some.
func (p *processService) StreamInput(ctx context.Context, stream *connect.ClientStream[protocol.StreamInputRequest]) (*protocol.StreamInputResponse, error) {
	release, err := of(ctx).limits.Stream()
	if err != nil {
		return nil, p.server.rpcError(ctx, err)
	}
	defer release()
	var proc *process.Process
	for stream.Receive() {
		var err error
		switch what := stream.Msg().GetEvent().(type) {
		case *protocol.StreamInputRequest_Start:
			proc, err = of(ctx).selected(what.Start.GetProcess())
		case *protocol.StreamInputRequest_Data:
			if proc == nil {
				err = connect.NewError(connect.CodeInvalidArgument, errors.New("the first message must be start"))
				break
			}
			err = p.write(ctx, proc, what.Data.GetInput())
		}
		if err != nil {
			return nil, err
		}
	}
	return &protocol.StreamInputResponse{}, stream.Err()
}

// CloseStdin ends the input of a process. Doing so twice is fine.
func (p *processService) CloseStdin(ctx context.Context, req *protocol.CloseStdinRequest) (*protocol.CloseStdinResponse, error) {
	proc, err := of(ctx).selected(req.Process)
	if err != nil {
		return nil, err
	}
	if proc.Info().Terminal != nil {
		return nil, connect.NewError(connect.CodeUnknown, errors.New("the process has a terminal: send ctrl-d"))
	}
	return &protocol.CloseStdinResponse{}, p.input(ctx, proc, (*process.Attachment).CloseWrite)
}

// SendSignal sends a signal to the process group of a process.
func (p *processService) SendSignal(ctx context.Context, req *protocol.SendSignalRequest) (*protocol.SendSignalResponse, error) {
	proc, err := of(ctx).selected(req.Process)
	if err != nil {
		return nil, err
	}
	if req.Signal != protocol.Signal_SIGNAL_SIGTERM && req.Signal != protocol.Signal_SIGNAL_SIGKILL {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("signal = %v: must be SIGNAL_SIGTERM or SIGNAL_SIGKILL", req.Signal))
	}
	return &protocol.SendSignalResponse{}, p.server.rpcError(ctx, proc.Signal(syscall.Signal(req.Signal)))
}

// Update changes the size of a terminal.
func (p *processService) Update(ctx context.Context, req *protocol.UpdateRequest) (*protocol.UpdateResponse, error) {
	proc, err := of(ctx).selected(req.Process)
	if err != nil {
		return nil, err
	}
	if req.Pty == nil {
		return &protocol.UpdateResponse{}, nil
	}
	if proc.Info().Terminal == nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("the process has no terminal"))
	}
	size, err := terminal(req.Pty.Size)
	if err != nil {
		return nil, p.server.rpcError(ctx, err)
	}
	return &protocol.UpdateResponse{}, p.server.rpcError(ctx, proc.Resize(size.Rows, size.Cols))
}
