// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"crypto/rand"
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
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/systemd"
)

// scope is one that has been started and is held by a process of boxd's: systemd makes none around nothing,
// and PID 1 of a box can only be put into it by the keeper.
type scope struct {
	group string // absolute path
	stdin io.Closer
	cmd   *exec.Cmd // nil: let go
}

// hold starts the process that a scope can be made around; program is boxkeeper.
func hold(program string) (*scope, error) {
	// Not CommandContext: the holder ends with its standard input, which ends with boxd at the latest.
	cmd := exec.Command(program, isolation.HoldCommand) //nolint:noctx // see above
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a Ctrl-C meant for boxd is not for it
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("process that holds the scope: %w", err)
	}
	if err := cmd.Start(); err != nil {
		stdin.Close()
		return nil, fmt.Errorf("process that holds the scope: %w", err)
	}
	return &scope{stdin: stdin, cmd: cmd}, nil
}

// start makes a scope. After an error there is none.
func (d *Driver) start(ctx context.Context, name string, limits *cgroup.Limits) (*scope, error) {
	d.stopLeft(ctx)
	s, err := hold(d.Program())
	if err != nil {
		return nil, err
	}
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	path, err := d.scopes.Start(within, name, s.cmd.Process.Pid, properties(limits))
	if err == nil {
		s.group = filepath.Join(cgroup.Mount, path)
		return s, nil
	}
	s.letGo()
	switch {
	case errors.Is(err, systemd.ErrScopeExists): // it is another's, or what is left of one is just going
		return nil, fault.Errorf(fault.Unavailable, "%w", err).WithHint("try again; another boxd on this host may use the same name")
	case !errors.Is(err, systemd.ErrNoBus):
		if serr := d.stopScope(ctx, name); serr != nil {
			d.log.Warn("scope", "error", serr) // it has lost its only process, and ends by that
		}
	}
	return nil, unavailable(err)
}

// letGo ends the holder. A scope without any other process ends with it.
func (s *scope) letGo() {
	if s.cmd == nil {
		return
	}
	s.stdin.Close()
	_ = s.cmd.Wait() // killed, if the scope has been stopped
	s.cmd = nil
}

// stop ends the scope of a box that is dead. Without a way to systemd that is put off until there is one: a
// scope without a process holds nothing, and most end by themselves.
func (d *Driver) stop(ctx context.Context, key string) error {
	name := systemd.ScopeName(key)
	err := d.stopScope(ctx, name)
	if errors.Is(err, systemd.ErrNoBus) {
		d.log.Warn("scope not stopped yet; trying again later", "error", err)
		d.mu.Lock()
		d.left[name] = true
		d.mu.Unlock()
		return nil
	}
	return err
}

// stopLeft stops what stop had to leave.
func (d *Driver) stopLeft(ctx context.Context) {
	d.mu.Lock()
	names := slices.Collect(maps.Keys(d.left))
	clear(d.left)
	d.mu.Unlock()
	for _, name := range names {
		if err := d.stopScope(ctx, name); err != nil {
			d.log.Warn("scope not stopped yet; trying again later", "error", err)
			d.mu.Lock()
			d.left[name] = true
			d.mu.Unlock()
		}
	}
}

func (d *Driver) stopScope(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	// Our box is dead. Who lives in a scope of that name is another boxd's; and one whose last process is just
	// going ends by itself.
	if living, err := populated(filepath.Join(cgroup.Mount, systemd.Slice, name)); err == nil && living {
		return nil
	}
	if err := d.scopes.Stop(ctx, name); err != nil {
		return err
	}
	// systemd gives up on a group that the keeper tidies at the same moment, and then nobody knows of it.
	return removeGroup(filepath.Join(cgroup.Mount, systemd.Slice, name))
}

// populated reports whether a group has a living process.
func populated(path string) (bool, error) {
	g, err := cgroup.Open(path)
	if err != nil {
		return false, err
	}
	defer g.Close()
	return g.Populated()
}

// removeGroup removes a group, and those below it, that has no process.
func removeGroup(path string) error {
	err := syscall.Rmdir(path)
	if errors.Is(err, syscall.EBUSY) {
		list, _ := os.ReadDir(path) // or it goes just now
		for _, e := range list {
			if e.IsDir() {
				_ = removeGroup(filepath.Join(path, e.Name())) // the second try tells
			}
		}
		err = syscall.Rmdir(path)
	}
	if err != nil && !errors.Is(err, syscall.ENOENT) {
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}

// set gives a box's scope other limits.
func (d *Driver) set(ctx context.Context, key string, limits *cgroup.Limits) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return d.scopes.Set(ctx, systemd.ScopeName(key), properties(limits))
}

// properties are the limits of the box as a whole, those that cgroup.Limits.Box writes where there is no
// scope. Swap is bounded with the programs.
func properties(l *cgroup.Limits) systemd.ScopeLimits {
	memory, pids := l.Cap()
	return systemd.ScopeLimits{
		MemoryMax: memory, MemorySwapMax: systemd.Unlimited, TasksMax: pids, CPUWeight: l.CPUWeight, IOWeight: l.IOWeight,
	}
}

// unavailable makes a refusal of what systemd does not do.
func unavailable(err error) error {
	if errors.Is(err, systemd.ErrNoScope) {
		return fmt.Errorf("%w: %w", syscall.ESRCH, err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("systemd did not answer within %v", patience) // not the caller's deadline
	}
	return fault.Errorf(fault.Unavailable, "cannot create a systemd scope for the box: %w", err).
		WithHint("check that D-Bus is running, or set cgroups.driver = \"direct\" in box.toml")
}

// Check examines the host, as client.Keeper.Check does, and whether scopes can be made.
func (d *Driver) Check(ctx context.Context) ([]isolation.Check, error) {
	checks, err := d.Keeper.Check(ctx)
	if err != nil || d.scopes == nil {
		return checks, err
	}
	c := isolation.Check{Name: "systemd scopes", Detail: "can be created in " + systemd.Slice}
	name := systemd.ScopeName("try-" + strings.ToLower(rand.Text()))
	s, err := d.start(ctx, name, &cgroup.Limits{Memory: 1 << 20, Pids: 1})
	if err == nil {
		err = d.stopScope(ctx, name)
		s.letGo()
	}
	if err != nil {
		c.Level, c.Detail = isolation.CheckFail, err.Error()
		c.Hint = "no box can start: start D-Bus, or set cgroups.driver = \"direct\" in box.toml"
	}
	return append(checks, c), nil
}
