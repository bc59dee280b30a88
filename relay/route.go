// SPDX-License-Identifier: Apache-2.0

// A route is a line of the table in routes.go; a Call is one request to it.

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

// unauthenticated is the role of a route that is open to every client that can connect.
const unauthenticated = ^access.Role(0)

// Route is an entry of the route table. The zero role matches no caller, so an entry without a role is closed.
type Route struct {
	Pattern string // "GET /v1/sessions/{id}"
	method  string
	path    []string // of the pattern, in segments
	Role    access.Role
	Others  access.Role // the role needed to use it on what others own
	Query   string      // the known query parameters
	Repeats string      // those of them that may be repeated
	// Handle returns what to send as JSON, a Created, an Answer, a noContent, or nil if it has sent a response itself.
	Handle func(c *Call) (any, error)
}

// Path are the ids in the path of a request. An id is one segment whatever is in it.
type Path struct{ Session, Process, Principal, Skill, Workspace, Snapshot, Image, Drive, Port string }

// Deps is what all calls share.
type Deps struct {
	Gate *access.Gate
	Telemetry
	Sup     *supervisor.Supervisor
	Skills  *skills.Store
	Drives  *volumes.Drives
	Images  *images.Store
	Log     *slog.Logger
	Version string // of boxd
	// Settings returns the effective configuration.
	Settings func() ([]api.Setting, error)
	Started  time.Time          // start of boxd
	Previews *access.PreviewKey // signs tokens of previews
	HTTP     string             // boxd's TCP address; "": none
	Answers  time.Duration      // how long a client may take to read a response
	Streams  sync.WaitGroup     // http.Server does not know hijacked connections
}

// Call is one request.
type Call struct {
	*Deps
	W      http.ResponseWriter
	R      *http.Request
	Caller access.Principal
	Limits *conns.Limits // of Caller
	Socket *net.UnixConn // of the request; nil: it came another way
	Path   Path
	Others access.Role // of the route
	Token  string      // name of the token that the caller used; "": none
	Within bool        // boxd itself makes the call on behalf of its caller

	// Dial opens a connection to boxd on which calls are made as the caller, with its token if it has one.
	Dial func(context.Context) (net.Conn, error)
	read bool // the body was read to its end
	pid  int  // of the connected process, if the kernel knows it

	// Observe is called with the decoded body, or the first message of a stream; it may be nil.
	Observe func(any)
	// Sending is called before a response is sent, or the last message of a stream; it may be nil.
	Sending func()

	noteMu  sync.Mutex // guards outcome
	outcome Outcome
}

// Context ends when the caller hangs up or boxd stops.
func (c *Call) Context() context.Context { return c.R.Context() }

// session finds the session of the path. A caller with the role for that may name another owner; for all others a
// session of another owner looks as if it did not exist.
func (c *Call) session() (*session.Session, error) {
	owner, err := c.Owner()
	if err != nil {
		return nil, err
	}
	return c.Sup.Session(owner, c.Path.Session)
}

// Process finds the process of the path.
func (c *Call) Process() (*session.Session, *process.Process, error) {
	s, err := c.session()
	if err != nil {
		return nil, nil, err
	}
	p, err := s.Process(c.Path.Process)
	return s, p, err
}

// usedProcess is Process for calls that need running programs: it wakes a sleeping session.
func (c *Call) usedProcess() (*session.Session, *process.Process, error) {
	s, p, err := c.Process()
	if err == nil {
		err = s.Use()
	}
	return s, p, err
}

// principalNamed returns the principal that a query names: "uid:N", the name of a principal, or that of a host user. uid:N is
// kept even if that user has a name by now: what the user had before is found by it.
func (c *Call) principalNamed(written string) string {
	if _, ok := access.UserOf(written); ok || written == "" || written == c.Caller.Name {
		return written
	}
	return c.Gate.Person(written)
}

// Owner returns whose sessions the request is about: the caller, unless the query names another owner.
func (c *Call) Owner() (access.Principal, error) {
	if c.R.URL.RawQuery == "" {
		return c.Caller, nil
	}
	name := c.principalNamed(c.R.URL.Query().Get("owner"))
	if name == "" || name == c.Caller.Name {
		return c.Caller, nil
	}
	if !c.Caller.Is(c.Others) {
		return c.Caller, fault.Field("owner", name, c.Caller.Name+", or left out").Of(fault.Denied).
			WithText("permission denied: to use boxes of %s needs the %s role, you have %q (%s)", fault.Show(name), c.Others, c.Caller.Role, c.Caller.Rule).
			WithHint("an admin can run: boxctl grant %s %s --until 1h", c.Caller.Name, c.Others).
			By(fault.Denial{Layer: fault.LayerPolicy, Rule: c.Caller.Rule, Used: c.Caller.Role.String(), Allowed: c.Others.String(), Setting: "role in [principals.NAME] of box.toml, or boxctl grant"})
	}
	principal, ok := c.Gate.Named(name)
	if uid, isUID := access.UserOf(name); isUID {
		principal.UID, ok = uid, true
	}
	if !ok {
		principal.UID = access.NoUser
	}
	return access.Principal{Name: name, UID: principal.UID}, nil
}

// endTimeout is how long a response waits for the end of a box, which continues afterwards.
const endTimeout = 10 * time.Second

// End ends a session that no client knows of, so that none would end it.
func (c *Deps) End(session *session.Session, reason session.EndReason) {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	_ = c.Sup.End(ctx, session, reason) // continues in the background, and logs what fails
}

// Stream opens a stream, if its caller may have another one.
func (c *Call) Stream(open func(*streamOpening) error) error {
	release, err := c.Limits.Stream()
	if err != nil {
		return err
	}
	defer release()
	c.Streams.Add(1)
	defer c.Streams.Done()
	return open(&streamOpening{
		W: c.W, R: c.R, Sup: c.Sup, Log: c.Log, Reserve: c.Limits.Reserve, Lines: c.Limits.ReserveLine, Unsent: c.unsent,
		Observe: c.observe, Ended: c.recordEnd,
	})
}

// unsent returns how many bytes the socket of a request holds that the peer has not received (SIOCOUTQ, unix(7)).
func (c *Call) unsent() int {
	if c.Socket == nil {
		return 0
	}
	control, err := c.Socket.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	_ = control.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }) // 0 if it is closed
	return n
}

// methodError is the refusal of a method on a path that has other methods.
type methodError struct {
	err     error
	allowed string
}

// wrongMethod returns the refusal of a method that is not among the allowed ones.
func wrongMethod(method string, allowed []string) error {
	list := strings.Join(allowed, ", ")
	return &methodError{fault.Field("method", method, list), list}
}

func (e *methodError) Error() string { return e.err.Error() }

// Unwrap returns the refusal itself.
func (e *methodError) Unwrap() error { return e.err }
