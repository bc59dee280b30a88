// SPDX-License-Identifier: Apache-2.0

// A route is a line of the table in routes.go; a Call is a request on its way to the handler of that line and back.

package relay

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/session"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"

	"github.com/boxd-dev/boxd/relay/conns"
	"github.com/boxd-dev/boxd/skills"
	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/images"
	"github.com/boxd-dev/boxd/supervisor/process"
	"github.com/boxd-dev/boxd/supervisor/volumes"
)

// Anyone is the role of a route for whoever can connect.
const Anyone = ^access.Role(0)

// Route is one way in. The zero role matches no caller, so a line without one is closed.
type Route struct {
	Pattern string // "GET /v1/sessions/{id}"
	method  string
	path    []string // of the pattern, in segments
	Role    access.Role
	Others  access.Role // the role of who may take it for what belongs to somebody else
	Query   string      // the query parameters it knows
	Repeats string      // those of them that may be given several times
	// Handle answers: what is to be sent as JSON, a Created, an Answer, a NoContent, or nil where it has
	// sent an answer itself.
	Handle func(c *Call) (any, error)
}

// Path are the ids in the path of a request. An id is one segment whatever is in it.
type Path struct{ Session, Process, Principal, Skill, Workspace, Snapshot, Image, Drive, Port string }

// Deps is what all calls have.
type Deps struct {
	Gate *access.Gate
	Telemetry
	Sup     *supervisor.Supervisor
	Skills  *skills.Store
	Drives  *volumes.Drives
	Images  *images.Store
	Log     *slog.Logger
	Version string // of boxd
	// Settings tells what is in force of the configuration.
	Settings func() ([]api.Setting, error)
	Started  time.Time          // when boxd was
	Previews *access.PreviewKey // signs tokens of previews
	HTTP     string             // the address of boxd over TCP; "": none
	Answers  time.Duration      // patience with who does not read an answer
	Streams  sync.WaitGroup     // http.Server does not know hijacked connections
}

// Call is one request on its way through.
type Call struct {
	*Deps
	W      http.ResponseWriter
	R      *http.Request
	Caller access.Principal
	Limits *conns.Limits // of Who
	Socket *net.UnixConn // that the request has come on; nil: it is none
	Path   Path
	Others access.Role // that of the route
	Token  string      // the name of the token by which the caller is known; "": none
	Within bool        // boxd itself makes the call, in its caller's name

	// Dial opens a connection to boxd on which calls are made in the name of the caller, with its token if it has one.
	Dial func(context.Context) (net.Conn, error)
	read bool // the body, to its end
	pid  int  // the process that has connected, if the kernel knows it

	// Hear is told what the body of the request, or the first message of its stream, asks for; nil: nobody is.
	Observe func(any)
	// Sending is called before an answer goes out, or the last message of a stream; nil: nothing is.
	Sending func()

	noting  sync.Mutex // guards came
	outcome Outcome
}

// Context ends when the caller hangs up or boxd stops.
func (c *Call) Context() context.Context { return c.R.Context() }

// Session finds the session of the path. Who has the role for that may name another owner; for everybody else a
// session of somebody else and one that does not exist are the same.
func (c *Call) Session() (*session.Session, error) {
	who, err := c.Owner()
	if err != nil {
		return nil, err
	}
	return c.Sup.Session(who, c.Path.Session)
}

// Process finds the process of the path.
func (c *Call) Process() (*session.Session, *process.Process, error) {
	s, err := c.Session()
	if err != nil {
		return nil, nil, err
	}
	p, err := s.Process(c.Path.Process)
	return s, p, err
}

// UsedProcess is Process for what needs its programs to run: it wakes a session that is asleep.
func (c *Call) UsedProcess() (*session.Session, *process.Process, error) {
	s, p, err := c.Process()
	if err == nil {
		err = s.Use()
	}
	return s, p, err
}

// Person is the name of the principal that somebody has written in a query: "uid:N", the name of a principal, or that of a
// user of the host. uid:N stays what it is where that user has a name by now: it is how what the user had before is found.
func (c *Call) Person(written string) string {
	if _, ok := access.UserOf(written); ok || written == "" || written == c.Caller.Name {
		return written
	}
	return c.Gate.Person(written)
}

// Owner is whose sessions the request is about: the caller's, unless the query names somebody else.
func (c *Call) Owner() (access.Principal, error) {
	if c.R.URL.RawQuery == "" {
		return c.Caller, nil
	}
	name := c.Person(c.R.URL.Query().Get("owner"))
	if name == "" || name == c.Caller.Name {
		return c.Caller, nil
	}
	if !c.Caller.Is(c.Others) {
		return c.Caller, fault.Field("owner", name, c.Caller.Name+", or left out").Of(fault.Denied).
			WithText("permission denied: to use boxes of %s needs the %s role, you have %q (%s)", fault.Show(name), c.Others, c.Caller.Role, c.Caller.Rule).
			WithHint("an admin can run: boxctl grant %s %s --until 1h", c.Caller.Name, c.Others).
			By(fault.Denial{Layer: fault.LayerPolicy, Rule: c.Caller.Rule, Used: c.Caller.Role.String(), Allowed: c.Others.String(), Setting: "role in [principals.NAME] of box.toml, or boxctl grant"})
	}
	who, ok := c.Gate.Named(name)
	if uid, isUID := access.UserOf(name); isUID {
		who.UID, ok = uid, true
	}
	if !ok {
		who.UID = access.NoUser
	}
	return access.Principal{Name: name, UID: who.UID}, nil
}

// endPatience is how long an answer waits for the end of a box; the end goes on after it.
const endPatience = 10 * time.Second

// End ends a session that nobody is going to end who knows of it.
func (c *Deps) End(session *session.Session, reason session.EndReason) {
	ctx, cancel := context.WithTimeout(context.Background(), endPatience)
	defer cancel()
	_ = c.Sup.End(ctx, session, reason) // it goes on ending, and logs what resists
}

// Stream opens a stream, if its caller may have one more.
func (c *Call) Stream(open func(*streamOpening) error) error {
	leave, err := c.Limits.Stream()
	if err != nil {
		return err
	}
	defer leave()
	c.Streams.Add(1)
	defer c.Streams.Done()
	return open(&streamOpening{
		W: c.W, R: c.R, Sup: c.Sup, Log: c.Log, Reserve: c.Limits.Reserve, Lines: c.Limits.ReserveLine, Unsent: c.unsent,
		Observe: c.observe, Ended: c.ended,
	})
}

// unsent is how many bytes the connection of a request has taken that its peer has not (SIOCOUTQ, unix(7)).
func (c *Call) unsent() int {
	if c.Socket == nil {
		return 0
	}
	control, err := c.Socket.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	_ = control.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }) // of a closed one nothing
	return n
}

// MethodError is the refusal of a method on a path that has others.
type MethodError struct {
	err     error
	allowed string
}

// wrongMethod returns the refusal of a method where these are allowed.
func wrongMethod(method string, allowed []string) error {
	list := strings.Join(allowed, ", ")
	return &MethodError{fault.Field("method", method, list), list}
}

func (e *MethodError) Error() string { return e.err.Error() }

// Unwrap leads to what the refusal says.
func (e *MethodError) Unwrap() error { return e.err }
