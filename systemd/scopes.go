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

// Slice is the unit that contains all boxes and has the limits for all of them together
// (units/box.slice).
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

// Intervals for polling what D-Bus does not report.
const (
	busPollInterval  = time.Second           // whether the bus still exists, while waiting for a job
	unitPollInterval = 20 * time.Millisecond // whether systemd has dropped a stopped unit
)

// Scopes makes, changes and ends transient scope units. Its methods may be called concurrently.
// The context of each bounds all waiting and should have a deadline: systemd does not answer
// while it reloads, and one unanswered start keeps the others waiting.
type Scopes struct {
	cancel context.CancelFunc
	dial   func(request context.Context) (*connection, error)
	turn   chan struct{} // holds one element; whoever has taken it may use conn
	conn   *connection   // nil before the first call
}

// connection is a connection to systemd; drop closes it and frees what it holds.
type connection struct {
	*sd.Conn
	drop context.CancelFunc
}

// NewScopes returns a client that lives until ctx ends or Close. It connects at the first call,
// to the system bus or else, as root, straight to systemd, and again at the next call after a
// connection is lost: that happens at every restart of the bus, or, without a bus, of systemd
// itself (daemon-reexec).
func NewScopes(ctx context.Context) *Scopes {
	baseCtx, cancel := context.WithCancel(ctx)
	s := &Scopes{
		cancel: cancel, turn: make(chan struct{}, 1),
		dial: func(request context.Context) (*connection, error) { return dial(baseCtx, request) },
	}
	s.turn <- struct{}{}
	return s
}

// Close ends the connection. Scopes stay. Calls in progress fail with ErrNoBus, as do all later
// ones.
func (s *Scopes) Close() {
	s.cancel()
	<-s.turn
	if s.conn != nil {
		s.conn.Close() // drop would close it only later
	}
	s.turn <- struct{}{}
}

// ScopeName returns the name of the scope of a box. A dash means nesting only in names of slices;
// in that of a scope it lets an administrator configure all boxes with one drop-in,
// box-.scope.d/*.conf.
func ScopeName(key string) string { return "box-" + key + ".scope" }

// Start puts a process into a new scope and returns its cgroup, a path below the mount of cgroup
// v2. The process must exist, and must not have been waited for, so that its PID cannot be
// reused. The scope ends with its last process.
//
// A name in use is ErrScopeExists. After any other error the scope may exist all the same: Stop
// it.
func (s *Scopes) Start(ctx context.Context, name string, pid int, limits ScopeLimits) (group string, err error) {
	if err := checkScopeName(name); err != nil {
		return "", err
	}
	if pid <= 1 || pid > math.MaxInt32 { // systemd takes 0 for the caller, which is boxd
		return "", fmt.Errorf("start %s: %d is not a process id for a scope", name, pid)
	}
	properties, err := scopeProperties(uint32(pid), limits)
	if err != nil {
		return "", fmt.Errorf("start %s: %w", name, err)
	}
	conn, err := s.bus(ctx)
	if err != nil {
		return "", fmt.Errorf("start %s: %w", name, err)
	}
	done := make(chan string, 1) // one for each job: an unread channel would block all others
	if _, err := conn.StartTransientUnitContext(ctx, name, "fail", properties, done); err != nil {
		return "", fmt.Errorf("start %s: %w", name, explain(conn, err))
	}
	if err := await(ctx, conn, name, done); err != nil {
		return "", fmt.Errorf("start %s: %w", name, err)
	}
	p, err := conn.GetUnitTypePropertyContext(ctx, name, "Scope", "ControlGroup")
	if err != nil {
		return "", fmt.Errorf("cgroup of %s: %w", name, explain(conn, err))
	}
	if group, _ = p.Value.Value().(string); group == "" {
		return "", fmt.Errorf("start %s: process %d is gone, and the scope with it: %w", name, pid, ErrNoScope)
	}
	return group, nil
}

// Set replaces all limits of a scope: those that are not set in limits are removed. Without the
// scope it returns ErrNoScope.
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

// Stop kills every process of a scope and returns when systemd has dropped it, so that its name
// is free. It is no error if the scope does not exist.
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
	// The job ends before the unit is dropped.
	ticker := time.NewTicker(unitPollInterval)
	defer ticker.Stop()
	for {
		remaining, err := loaded(ctx, conn, name)
		if err != nil || len(remaining) == 0 {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// List returns the names of all scopes that begin with prefix, whichever program made them: if the caller has none of its own,
// they are left over from an earlier run.
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

// loaded returns the loaded units that match a pattern. Unlike a query for one unit it does not
// make systemd load anything.
func loaded(ctx context.Context, conn *sd.Conn, pattern string) ([]string, error) {
	units, err := conn.ListUnitsByPatternsContext(ctx, nil, []string{pattern})
	if err != nil {
		return nil, fmt.Errorf("list units: %w", explain(conn, err))
	}
	var names []string
	for _, u := range units {
		if u.LoadState != "not-found" { // otherwise a client has only queried it
			names = append(names, u.Name)
		}
	}
	return names, nil
}

// await waits for a job that has been sent. The bus may end meanwhile without saying so.
func await(ctx context.Context, conn *sd.Conn, name string, done <-chan string) error {
	ticker := time.NewTicker(busPollInterval)
	defer ticker.Stop()
	for {
		select {
		case result := <-done:
			if result == "done" {
				return nil
			}
			return failure(ctx, conn, name, result)
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
			if !conn.Connected() {
				return fmt.Errorf("%w: the connection ended before the job did", ErrNoBus)
			}
		}
	}
}

// failure returns why a job has failed, and frees the name of a failed unit.
func failure(ctx context.Context, conn *sd.Conn, name, result string) error {
	why := "unknown" // the unit may be gone already, and the reason with it
	if p, err := conn.GetUnitTypePropertyContext(ctx, name, "Scope", "Result"); err == nil {
		why, _ = p.Value.Value().(string)
	}
	err := explain(conn, conn.ResetFailedUnitContext(ctx, name))
	if errors.Is(err, ErrNoScope) {
		err = nil
	}
	return errors.Join(fmt.Errorf("job of systemd is %q, result of the unit %q", result, why), err)
}

// bus returns a working connection.
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
		s.conn.drop() // one of its two halves may still work
		s.conn = nil
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	s.conn = conn
	return conn.Conn, nil
}

// dial connects. The connection lives as long as baseCtx; request bounds only the connecting, which
// takes no context of its own.
func dial(baseCtx, request context.Context) (*connection, error) {
	baseCtx, drop := context.WithCancel(baseCtx)
	type dialled struct {
		conn *sd.Conn
		err  error
	}
	done := make(chan dialled, 1)
	go func() {
		conn, err := sd.NewSystemConnectionContext(baseCtx)
		if err != nil && os.Geteuid() == 0 && baseCtx.Err() == nil { // as NewWithContext does, except that it goes on when life has ended
			conn, err = sd.NewSystemdConnectionContext(baseCtx)
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
		drop() // closes what has been opened, which ends the goroutine
		return nil, request.Err()
	}
}

// explain gives an error of D-Bus a type if a caller can act on it.
func explain(conn *sd.Conn, err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if reply, ok := errors.AsType[dbus.Error](err); ok {
		if known := typed(reply.Name); known != "" {
			return fmt.Errorf("%w: %w", known, err)
		}
		return err
	}
	// A broken connection shows in the first call that writes to it, before the connection itself
	// knows.
	_, broken := errors.AsType[*net.OpError](err)
	if broken || errors.Is(err, io.EOF) || errors.Is(err, dbus.ErrClosed) || !conn.Connected() {
		return fmt.Errorf("%w: %w", ErrNoBus, err)
	}
	return err
}

// typed maps names of errors of systemd and of the bus.
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

// checkScopeName refuses names that systemd would take for a pattern or for another unit.
func checkScopeName(name string) error {
	const longest = 255
	key, ok := strings.CutSuffix(name, scopeSuffix)
	bad := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.:", r)
	}
	if !ok || key == "" || len(name) > longest || strings.ContainsFunc(key, bad) {
		return fmt.Errorf("scope name %q: must be at most %d of a-z A-Z 0-9 - _ . : that end in %s", name, longest, scopeSuffix)
	}
	return nil
}
