// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/statedir"
)

// count bounds how many workspaces there are, and images, which were workspaces.
type count struct {
	dir  string // holds their directories
	most int    // 0: any number
	mu   sync.Mutex
	n    int // guarded by mu: at least as many as there are: what failed or is gone again is noticed when it reaches most
}

// add calls makeOne, which makes one more, unless there are as many as there may be.
func (c *count) add(makeOne func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.most > 0 && c.n >= c.most {
		c.n = 0
		for _, name := range []string{"workspaces", isolation.SpacesDir, statedir.ImageTrees} {
			in, err := os.ReadDir(c.dir + "/" + name)
			if c.n += len(in); err != nil && !errors.Is(err, fs.ErrNotExist) {
				c.n = c.most
				return err
			}
		}
		if c.n >= c.most {
			return &isolation.StepError{Step: isolation.StepWorkspace, Errno: unix.EUSERS, Refused: &isolation.Refusal{
				Field: isolation.FieldWorkspaces, Value: strconv.Itoa(c.n + 1), Allowed: "at most " + strconv.Itoa(c.most),
			}}
		}
	}
	c.n++
	return makeOne()
}
