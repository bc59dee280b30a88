// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/systemd"
)

// heldScope is a started scope, kept by a process of its own: systemd makes no empty scope, and only the keeper can put PID 1 of
// a box into it.
type heldScope struct {
	group string // absolute path
	stdin io.Closer
	cmd   *exec.Cmd // nil: released
}

// newHeldScope starts the process that a scope is made around; program is boxkeeper.
func newHeldScope(program string) (*heldScope, error) {
	// Not CommandContext: the holder ends when its stdin closes, at the latest when this process ends.
	cmd := exec.Command(program, isolation.HoldCommand) //nolint:noctx // see above
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // not affected by a Ctrl-C meant for boxd
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("process that holds the scope: %w", err)
	}
	if err := cmd.Start(); err != nil {
		stdin.Close()
		return nil, fmt.Errorf("process that holds the scope: %w", err)
	}
	return &heldScope{stdin: stdin, cmd: cmd}, nil
}

// release ends the holder. A scope without any other process ends with it.
func (s *heldScope) release() {
	if s.cmd == nil {
		return
	}
	s.stdin.Close()
	_ = s.cmd.Wait() // killed, if the scope has been stopped
	s.cmd = nil
}

// scope is a scope that a server has started and holds for a box, until it is released.
type scope struct {
	group string // absolute path
	conn  *fdpass.Conn
}

// release has the server release the scope, and waits for that. A scope without any other process ends.
func (s *scope) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	if s.conn.Send(nil) == nil {
		_, files, _ := s.conn.RecvContext(ctx, true) // the server closes the connection
		fdpass.CloseAll(files)
	}
	s.conn.Close()
}

// askScope sends a request to the server. The caller owns the connection and waits no longer than ctx.
func (d *Driver) askScope(ctx context.Context, req *scopeRequest) (*scope, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	conn, err := d.scopes(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", systemd.ErrNoBus, err)
	}
	err = conn.Send(body)
	var answer []byte
	if err == nil {
		var files []int
		answer, files, err = conn.RecvContext(ctx, true)
		fdpass.CloseAll(files)
	}
	var reply scopeReply
	switch {
	case err != nil && ctx.Err() != nil:
		err = ctx.Err()
	case err != nil:
		err = fmt.Errorf("%w: %w", systemd.ErrNoBus, err)
	default:
		err = json.Unmarshal(answer, &reply)
	}
	switch {
	case err != nil:
	case reply.Kind != "":
		err = fmt.Errorf("%w: %s", reply.Kind, reply.Error)
	case reply.Error != "":
		err = errors.New(reply.Error)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &scope{group: reply.Group, conn: conn}, nil
}

// changeScope makes a request after which the server holds nothing.
func (d *Driver) changeScope(ctx context.Context, req *scopeRequest) error {
	s, err := d.askScope(ctx, req)
	if err != nil {
		return err
	}
	s.conn.Close()
	return nil
}

// start makes the scope of a box. After an error none remains.
func (d *Driver) start(ctx context.Context, key string, limits *cgroup.Limits) (*scope, error) {
	d.stopLeft(ctx)
	timeoutCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s, err := d.askScope(timeoutCtx, &scopeRequest{Do: scopeStart, Key: key, Limits: properties(limits)})
	if errors.Is(err, systemd.ErrScopeExists) { // of another boxd, or still being removed
		return nil, fault.Errorf(fault.Unavailable, "%w", err).WithHint("try again; another boxd on this host may use the same name")
	}
	if err != nil {
		return nil, unavailable(err)
	}
	return s, nil
}

// stop ends the scope of a dead box. If systemd cannot be reached, that is deferred until it can: a scope without a process holds
// nothing, and most end by themselves.
func (d *Driver) stop(ctx context.Context, key string) error {
	err := d.stopScope(ctx, key)
	if errors.Is(err, systemd.ErrNoBus) {
		d.log.Warn("scope not stopped yet; trying again later", "error", err)
		d.mu.Lock()
		d.left[key] = true
		d.mu.Unlock()
		return nil
	}
	return err
}

// stopLeft stops the scopes that stop deferred.
func (d *Driver) stopLeft(ctx context.Context) {
	d.mu.Lock()
	keys := slices.Collect(maps.Keys(d.left))
	clear(d.left)
	d.mu.Unlock()
	for _, key := range keys {
		if err := d.stopScope(ctx, key); err != nil {
			d.log.Warn("scope not stopped yet; trying again later", "error", err)
			d.mu.Lock()
			d.left[key] = true
			d.mu.Unlock()
		}
	}
}

func (d *Driver) stopScope(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	return d.changeScope(ctx, &scopeRequest{Do: scopeStop, Key: key})
}

// populated reports whether a cgroup has a living process.
func populated(path string) (bool, error) {
	g, err := cgroup.Open(path)
	if err != nil {
		return false, err
	}
	defer g.Close()
	return g.Populated()
}

// removeGroup removes a cgroup without processes, and its children.
func removeGroup(path string) error {
	err := syscall.Rmdir(path)
	if errors.Is(err, syscall.EBUSY) {
		list, _ := os.ReadDir(path) // or it is being removed just now
		for _, e := range list {
			if e.IsDir() {
				_ = removeGroup(filepath.Join(path, e.Name())) // the second try reports errors
			}
		}
		err = syscall.Rmdir(path)
	}
	if err != nil && !errors.Is(err, syscall.ENOENT) {
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}

// set changes the limits of a box's scope.
func (d *Driver) set(ctx context.Context, key string, limits *cgroup.Limits) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return d.changeScope(ctx, &scopeRequest{Do: scopeSet, Key: key, Limits: properties(limits)})
}

// properties are the limits of the box as a whole, those that cgroup.Limits.Box writes where there is no scope. Swap is limited
// with the programs.
func properties(l *cgroup.Limits) systemd.ScopeLimits {
	memory, pids := l.Cap()
	return systemd.ScopeLimits{
		MemoryMax: memory, MemorySwapMax: systemd.Unlimited, TasksMax: pids, CPUWeight: l.CPUWeight, IOWeight: l.IOWeight,
	}
}

// unavailable turns an error of systemd into a refusal.
func unavailable(err error) error {
	if errors.Is(err, systemd.ErrNoScope) {
		return fmt.Errorf("%w: %w", syscall.ESRCH, err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("systemd did not answer within %v", timeout) // not the caller's deadline
	}
	return fault.Errorf(fault.Unavailable, "cannot create a systemd scope for the box: %w", err).
		WithHint("check that D-Bus is running, or set cgroups.driver = \"direct\" in box.toml")
}

// Check examines the host, as client.Keeper.Check does, and whether scopes can be created.
func (d *Driver) Check(ctx context.Context) ([]isolation.Check, error) {
	checks, err := d.Keeper.Check(ctx)
	if err != nil || d.scopes == nil {
		return checks, err
	}
	c := isolation.Check{Name: "systemd scopes", Detail: "can be created in " + systemd.Slice}
	key := "doctor" + strings.ToLower(rand.Text()) // of isolation.KeyLen
	s, err := d.start(ctx, key, &cgroup.Limits{Memory: 1 << 20, Pids: 1})
	if err == nil {
		s.release(ctx)
		err = d.stopScope(ctx, key)
	}
	if err != nil {
		c.Level, c.Detail = isolation.CheckFail, err.Error()
		c.Hint = "no box can start: start D-Bus, or set cgroups.driver = \"direct\" in box.toml"
	}
	return append(checks, c), nil
}
