// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strings"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// Slice is the unit that all boxes are in and that carries their common limits (units/box.slice).
const Slice = "box.slice"

// Error is a failure that a caller can act on; errors.Is finds it in what the methods return.
type Error string

// The errors.
const (
	ErrNoBus       Error = "systemd cannot be reached over D-Bus"
	ErrScopeExists Error = "a unit of that name exists"
	ErrNoScope     Error = "no such scope"
)

func (e Error) Error() string { return string(e) }

// Times between two looks at what D-Bus does not tell.
const (
	lookAtBus  = time.Second           // whether the bus is still there, while a job is awaited
	lookAtUnit = 20 * time.Millisecond // whether systemd has dropped a unit that was stopped
)

// Scopes makes, changes and ends transient scope units. Its methods may be called concurrently. The
// context of each bounds all waiting and should have a deadline: systemd does not answer while it
// reloads, and one unanswered start keeps the others waiting.
type Scopes struct {
	end  context.CancelFunc
	dial func(request context.Context) (*connection, error)
	turn chan struct{} // holds one element; who has taken it may use conn
	conn *connection   // nil before the first call
}

// connection is one to systemd; drop closes it and frees what it holds.
type connection struct {
	*sd.Conn
	drop context.CancelFunc
}

// NewScopes returns a client that lives until ctx ends or Close. It connects at the first call, to the
// system bus or else, as root, straight to systemd, and again at the next call after a connection is
// lost: at every restart of the bus, or of systemd itself (daemon-reexec) without one.
func NewScopes(ctx context.Context) *Scopes {
	life, end := context.WithCancel(ctx)
	s := &Scopes{
		end: end, turn: make(chan struct{}, 1),
		dial: func(request context.Context) (*connection, error) { return dial(life, request) },
	}
	s.turn <- struct{}{}
	return s
}

// Close ends the connection. Scopes live on. Calls under way fail with ErrNoBus, as do all later ones.
func (s *Scopes) Close() {
	s.end()
	<-s.turn
	if s.conn != nil {
		s.conn.Close() // drop would do it later
	}
	s.turn <- struct{}{}
}

// ScopeName returns the name of the scope of a box. A dash means nesting in names of slices alone; in
// that of a scope it lets an administrator reach all boxes with one drop-in, box-.scope.d/*.conf.
func ScopeName(key string) string { return "box-" + key + ".scope" }

// Start puts a process, which must exist and whose id the caller must hold (not have waited for), into
// a new scope and returns its cgroup, a path below the mount of cgroup v2. The scope ends with
// its last process.
//
// A name in use is ErrScopeExists. After any other error the scope may exist all the same: Stop it.
func (s *Scopes) Start(ctx context.Context, name string, pid int, limits ScopeLimits) (group string, err error) {
	if err := checkScopeName(name); err != nil {
		return "", err
	}
	if pid <= 1 || pid > math.MaxInt32 { // systemd takes 0 for the caller, which is boxd
		return "", fmt.Errorf("start %s: %d is no id of a process for a scope", name, pid)
	}
	properties, err := scopeProperties(uint32(pid), limits)
	if err != nil {
		return "", fmt.Errorf("start %s: %w", name, err)
	}
	conn, err := s.bus(ctx)
	if err != nil {
		return "", fmt.Errorf("start %s: %w", name, err)
	}
	done := make(chan string, 1) // one for each job, or one that nobody reads stops all others
	if _, err := conn.StartTransientUnitContext(ctx, name, "fail", properties, done); err != nil {
		return "", fmt.Errorf("start %s: %w", name, explain(conn, err))
	}
	if err := await(ctx, conn, name, done); err != nil {
		return "", fmt.Errorf("start %s: %w", name, err)
	}
	p, err := conn.GetUnitTypePropertyContext(ctx, name, "Scope", "ControlGroup")
	if err != nil {
		return "", fmt.Errorf("control group of %s: %w", name, explain(conn, err))
	}
	if group, _ = p.Value.Value().(string); group == "" {
		return "", fmt.Errorf("start %s: process %d is gone, and the scope with it: %w", name, pid, ErrNoScope)
	}
	return group, nil
}

// Set replaces all limits of a scope: one that limits does not name is lifted. Without the scope it
// returns ErrNoScope.
func (s *Scopes) Set(ctx context.Context, name string, limits ScopeLimits) error {
	if err := checkScopeName(name); err != nil {
		return err
	}
	properties, err := limits.properties()
	if err != nil {
		return fmt.Errorf("set limits of %s: %w", name, err)
	}
	conn, err := s.bus(ctx)
	if err == nil {
		err = explain(conn, conn.SetUnitPropertiesContext(ctx, name, true, properties...))
	}
	if err != nil {
		return fmt.Errorf("set limits of %s: %w", name, err)
	}
	return nil
}

// Stop kills every process of a scope and returns when systemd has forgotten it, so that its name is
// free. A scope that does not exist is no error.
func (s *Scopes) Stop(ctx context.Context, name string) error {
	if err := checkScopeName(name); err != nil {
		return err
	}
	conn, err := s.bus(ctx)
	if err == nil {
		err = stop(ctx, conn, name)
	}
	if err != nil {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	return nil
}

func stop(ctx context.Context, conn *sd.Conn, name string) error {
	done := make(chan string, 1)
	_, err := conn.StopUnitContext(ctx, name, "replace", done)
	if err = explain(conn, err); errors.Is(err, ErrNoScope) {
		return nil
	}
	if err == nil {
		err = await(ctx, conn, name, done)
	}
	if err != nil {
		return err
	}
	// The job is over before the unit is dropped.
	look := time.NewTicker(lookAtUnit)
	defer look.Stop()
	for {
		left, err := loaded(ctx, conn, name)
		if err != nil || len(left) == 0 {
			return err
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// List returns the names of all scopes that begin with prefix, whoever made them: the leftovers of an
// earlier run, if the caller has none of its own.
func (s *Scopes) List(ctx context.Context, prefix string) ([]string, error) {
	if err := checkScopeName(prefix + scopeSuffix); err != nil {
		return nil, err
	}
	conn, err := s.bus(ctx)
	if err != nil {
		return nil, fmt.Errorf("list scopes: %w", err)
	}
	return loaded(ctx, conn, prefix+"*"+scopeSuffix)
}

// loaded returns the units systemd has that match a pattern. Unlike a question for one unit it does
// not make systemd load anything.
func loaded(ctx context.Context, conn *sd.Conn, pattern string) ([]string, error) {
	units, err := conn.ListUnitsByPatternsContext(ctx, nil, []string{pattern})
	if err != nil {
		return nil, fmt.Errorf("list units: %w", explain(conn, err))
	}
	var names []string
	for _, u := range units {
		if u.LoadState != "not-found" { // only asked for by somebody
			names = append(names, u.Name)
		}
	}
	return names, nil
}

// await waits for a job that has been sent off. The bus may end meanwhile, and does not say so.
func await(ctx context.Context, conn *sd.Conn, name string, done <-chan string) error {
	look := time.NewTicker(lookAtBus)
	defer look.Stop()
	for {
		select {
		case result := <-done:
			if result == "done" {
				return nil
			}
			return failure(ctx, conn, name, result)
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
			if !conn.Connected() {
				return fmt.Errorf("%w: the connection ended before the job did", ErrNoBus)
			}
		}
	}
}

// failure says why a job has not been done, and frees the name of a unit that failed.
func failure(ctx context.Context, conn *sd.Conn, name, result string) error {
	why := "unknown" // the unit may be gone already, and its reason with it
	if p, err := conn.GetUnitTypePropertyContext(ctx, name, "Scope", "Result"); err == nil {
		why, _ = p.Value.Value().(string)
	}
	err := explain(conn, conn.ResetFailedUnitContext(ctx, name))
	if errors.Is(err, ErrNoScope) {
		err = nil
	}
	return errors.Join(fmt.Errorf("job of systemd is %q, result of the unit %q", result, why), err)
}

// bus returns a living connection.
func (s *Scopes) bus(ctx context.Context) (*sd.Conn, error) {
	select {
	case <-s.turn:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { s.turn <- struct{}{} }()
	if s.conn != nil && s.conn.Connected() {
		return s.conn.Conn, nil
	}
	if s.conn != nil {
		s.conn.drop() // of its two halves one may still live
		s.conn = nil
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	s.conn = conn
	return conn.Conn, nil
}

// dial connects. The connection lives as long as life; request bounds the making of it alone, which
// takes no context of its own.
func dial(life, request context.Context) (*connection, error) {
	life, drop := context.WithCancel(life)
	type dialled struct {
		conn *sd.Conn
		err  error
	}
	done := make(chan dialled, 1)
	go func() {
		conn, err := sd.NewSystemConnectionContext(life)
		if err != nil && os.Geteuid() == 0 && life.Err() == nil { // as NewWithContext, which goes on when life is over
			conn, err = sd.NewSystemdConnectionContext(life)
		}
		done <- dialled{conn, err}
	}()
	select {
	case d := <-done:
		if d.err != nil {
			drop()
			return nil, fmt.Errorf("%w: %w", ErrNoBus, d.err)
		}
		return &connection{d.conn, drop}, nil
	case <-request.Done():
		drop() // closes what has been opened, and so ends the goroutine
		return nil, request.Err()
	}
}

// explain gives an error of D-Bus a type where a caller can act on it.
func explain(conn *sd.Conn, err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if said, ok := errors.AsType[dbus.Error](err); ok {
		if known := typed(said.Name); known != "" {
			return fmt.Errorf("%w: %w", known, err)
		}
		return err
	}
	// A broken connection shows in the first call to write to it, before the connection itself knows.
	_, broken := errors.AsType[*net.OpError](err)
	if broken || errors.Is(err, io.EOF) || errors.Is(err, dbus.ErrClosed) || !conn.Connected() {
		return fmt.Errorf("%w: %w", ErrNoBus, err)
	}
	return err
}

// typed knows the names of errors of systemd and of the bus.
func typed(name string) Error {
	switch name {
	case "org.freedesktop.systemd1.UnitExists":
		return ErrScopeExists
	case "org.freedesktop.systemd1.NoSuchUnit":
		return ErrNoScope
	case "org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner",
		"org.freedesktop.DBus.Error.Disconnected", "org.freedesktop.DBus.Error.NoReply":
		return ErrNoBus
	}
	return ""
}

const scopeSuffix = ".scope"

// checkScopeName lets nothing through that systemd would take for a pattern or for another unit.
func checkScopeName(name string) error {
	const longest = 255
	key, ok := strings.CutSuffix(name, scopeSuffix)
	bad := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.:", r)
	}
	if !ok || key == "" || len(name) > longest || strings.ContainsFunc(key, bad) {
		return fmt.Errorf("name of a scope is %q: must be one of at most %d of a-z A-Z 0-9 - _ . : that end in %s", name, longest, scopeSuffix)
	}
	return nil
}
