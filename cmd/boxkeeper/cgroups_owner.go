// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
)

// openOwner opens the cgroup of an owner, and makes it with its limits if it does not exist.
func (t *cgroupTree) openOwner(owner *cgroup.Owner) (cgroup.Group, error) {
	name := ownerPrefix + owner.Name
	g, err := t.root.Make(name)
	if errors.Is(err, fs.ErrExist) {
		return t.root.Open(name)
	}
	if err == nil {
		if err = errors.Join(t.enable(g), g.Apply(owner.Settings())); err != nil {
			g.Close()
		}
	}
	if err != nil {
		_ = t.root.Remove(name)
		return g, fmt.Errorf("make %s: %w", name, err)
	}
	return g, nil
}

// ownerSlack is added to what an owner uses if that is more than the new limit, so that memory growing
// at that moment causes no kill. In bytes.
const ownerSlack = 16 << 20

// SetOwner changes the limits for all boxes of an owner together. ESRCH: the owner has no boxes.
// Nothing is killed if a limit is lower than what they use: an *inUseError says that they get no
// more for now, and that SetOwner must be called again.
func (t *cgroupTree) SetOwner(owner *cgroup.Owner) error {
	g, err := t.root.Open(ownerPrefix + owner.Name)
	if err == nil {
		defer g.Close()
		err = setOwner(g, owner)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) { // its last box has ended
		return unix.ESRCH
	}
	return err
}

func setOwner(g cgroup.Group, owner *cgroup.Owner) error {
	limit := owner.MemoryMax()
	if limit == 0 {
		return g.Apply(owner.Settings())
	}
	used, err := g.Number("memory.current")
	if err == nil && used > limit {
		// memory.high makes the kernel reclaim what it can at once; it is removed again, as it
		// would slow down all boxes.
		err = g.Write("memory.high", strconv.FormatUint(limit, 10))
		if err = errors.Join(err, g.Write("memory.high", "max")); err == nil {
			used, err = g.Number("memory.current")
		}
	}
	if err != nil {
		return err
	}
	if used <= limit {
		return g.Apply(owner.Settings())
	}
	now, err := g.Number("memory.max")
	if err == nil && now > used+ownerSlack {
		err = g.Write("memory.max", strconv.FormatUint(used+ownerSlack, 10))
	}
	cpu := owner.Settings()[1:]
	return errors.Join(err, g.Apply(cpu), &inUseError{"memory", used, limit})
}

// ownerOf returns the name of the owner whose cgroup contains that of a box, "" if Make has not
// made it.
func ownerOf(group string) string {
	name, ok := strings.CutPrefix(filepath.Base(filepath.Dir(group)), ownerPrefix)
	if !ok {
		return ""
	}
	return name
}
