// SPDX-License-Identifier: Apache-2.0

package tree

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

// openOwner opens the group of an owner, which is made and limited if it is not there.
func (t *Tree) openOwner(owner *cgroup.Owner) (cgroup.Group, error) {
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

// slack is what an owner gets beyond what it uses when it uses more than it may: what grows just then kills nobody.
const slack = 16 << 20

// SetOwner changes what all boxes of an owner may have together. ESRCH: it has none. Nobody is killed for a limit
// that is lower than what they use: an *InUseError says that they get no more for now, and that SetOwner is to be
// called again.
func (t *Tree) SetOwner(owner *cgroup.Owner) error {
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
	most := owner.MemoryMax()
	if most == 0 {
		return g.Apply(owner.Settings())
	}
	used, err := g.Number("memory.current")
	if err == nil && used > most {
		// memory.high takes back what it can at once; left there it would slow everybody down.
		err = g.Write("memory.high", strconv.FormatUint(most, 10))
		if err = errors.Join(err, g.Write("memory.high", "max")); err == nil {
			used, err = g.Number("memory.current")
		}
	}
	if err != nil {
		return err
	}
	if used <= most {
		return g.Apply(owner.Settings())
	}
	now, err := g.Number("memory.max")
	if err == nil && now > used+slack {
		err = g.Write("memory.max", strconv.FormatUint(used+slack, 10))
	}
	cpu := owner.Settings()[1:]
	return errors.Join(err, g.Apply(cpu), &InUseError{"memory", used, most})
}

// OwnerOf is the name of the owner in whose group a box's group is, "" if that is no group of Make's.
func OwnerOf(group string) string {
	name, ok := strings.CutPrefix(filepath.Base(filepath.Dir(group)), ownerPrefix)
	if !ok {
		return ""
	}
	return name
}
