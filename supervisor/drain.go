// SPDX-License-Identifier: Apache-2.0

// An operator can drain boxd: no new session starts. The switch is on disk, so it survives restarts of boxd.

package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// Drained says who has drained boxd, and why.
type Drained struct {
	By     string    `json:"by"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
}

// MaxDrainReason is the maximum length of an operator's reason, in bytes.
const MaxDrainReason = 256

// name is the file name of the record in the state directory.
const name = "drained.json"

// DrainSwitch decides whether new sessions may start.
type DrainSwitch struct {
	root *os.Root

	mu     sync.Mutex // guards the field below, and is held while the record is written
	closed *Drained   // nil: boxd is not drained; the value is never modified
}

// OpenDrainSwitch reads the switch as it was left in a directory, which it makes if there is none.
func OpenDrainSwitch(state string) (*DrainSwitch, error) {
	root, err := durable.Directory(state)
	if err != nil {
		return nil, fmt.Errorf("drain switch: %w", err)
	}
	g := &DrainSwitch{root: root}
	d := &Drained{}
	switch err := durable.ReadJSON(root, name, d); {
	case err == nil:
		g.closed = d
	case !errors.Is(err, fs.ErrNotExist):
		root.Close()
		return nil, fmt.Errorf("%s/%s: %w; remove the file to let boxd accept new sessions", state, name, err)
	}
	return g, nil
}

// Close closes the state directory.
func (g *DrainSwitch) Close() { g.root.Close() }

// Drain refuses new sessions from now on. If boxd is drained already, that stays as it is.
func (g *DrainSwitch) Drain(by, reason string, now time.Time) (Drained, error) {
	if len(reason) > MaxDrainReason {
		return Drained{}, fault.Field("reason", reason, fmt.Sprintf("at most %d bytes", MaxDrainReason))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != nil {
		return *g.closed, nil
	}
	d := &Drained{By: by, Since: now.UTC().Truncate(time.Second), Reason: reason}
	if err := durable.WriteJSON(g.root, name, d); err != nil {
		return Drained{}, err
	}
	g.closed = d
	return *d, nil
}

// Undrain lets sessions start again.
func (g *DrainSwitch) Undrain() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == nil {
		return nil
	}
	if err := g.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	g.closed = nil
	return nil
}

// Check refuses a new session while boxd is drained, or if enabled, the configuration's setting, is false.
func (g *DrainSwitch) Check(enabled bool) error {
	g.mu.Lock()
	d := g.closed
	g.mu.Unlock()
	if !enabled {
		return fault.Errorf(fault.Unavailable, "boxd accepts no new boxes: enabled = false in box.toml").
			WithHint("set enabled = true in box.toml, then: systemctl reload boxd")
	}
	if d == nil {
		return nil
	}
	by, at, reason := d.By, d.Since.Local(), ""
	if by == access.OfUser(0) {
		by = "root"
	}
	if d.Reason != "" {
		reason = " (" + fault.Show(d.Reason) + ")"
	}
	layout := time.TimeOnly
	if now := time.Now(); now.YearDay() != at.YearDay() || now.Year() != at.Year() {
		layout = time.DateTime
	}
	return fault.Errorf(fault.Unavailable, "boxd accepts no new boxes: drained by %s at %s%s", by, at.Format(layout), reason).
		WithHint("an admin can run: boxctl undrain")
}
