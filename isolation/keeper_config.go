// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"path/filepath"
	"strconv"
	"time"
)

// KeeperConfig is what a keeper is started with. It comes from root as flags and is never changed by a
// request; boxd replaces a keeper that has another one.
type KeeperConfig struct {
	RunDir   string // holds the keeper's socket, and a directory of each living box
	StateDir string // holds the managed workspaces; 0700
	BoxInit  string // path of the program that becomes PID 1 of a box
	IDBase   uint32 // first host id of the first range, a multiple of IDRange
	IDCount  uint32 // number of ranges, one for each living box
	IDLock   string // file that reserves ranges among all keepers of the host
	Ahead    int    // how many boxes are cloned ahead of need
	Store    uint64 // bytes of the store, where the state directory has no quotas; 0: no store
	Group    string // cgroup that has been delegated to boxd, an absolute path; "": none
	Allow    []string
	Etc      []string
	Network  []string      // as isolation/network has it
	Patience time.Duration // for filesystems that callers name; 0: some seconds

	AIO        bool     // programs may have asynchronous I/O of the kernel, whose amount is one for the host
	QuotaRoots []string // directories of the host below which such can be given quotas
}

// Names in the run directory.
const (
	KeeperDir    = "keeper" // of the keeper alone, 0700
	KeeperSocket = "socket" // in KeeperDir
	BoxesDir     = "boxes"  // a directory for each box, 0700
)

// Flags returns the flags of a keeper with this configuration, always in the same order.
func (c *KeeperConfig) Flags() []string {
	flags := []string{
		"-run=" + c.RunDir, "-state=" + c.StateDir, "-boxinit=" + c.BoxInit,
		"-id-base=" + strconv.FormatUint(uint64(c.IDBase), 10), "-id-count=" + strconv.FormatUint(uint64(c.IDCount), 10), "-id-lock=" + c.IDLock,
		"-ahead=" + strconv.Itoa(c.Ahead), "-store=" + strconv.FormatUint(c.Store, 10), "-group=" + c.Group, "-patience=" + c.Patience.String(),
	}
	if c.AIO {
		flags = append(flags, "-aio")
	}
	for _, list := range []struct {
		name   string
		values []string
	}{{"-allow=", c.Allow}, {"-etc=", c.Etc}, {"-network=", c.Network}, {"-quota-root=", c.QuotaRoots}} {
		for _, value := range list.values {
			flags = append(flags, list.name+value)
		}
	}
	return flags
}

// BoxFiles is the path of the program that serves files in boxes: it lies beside BoxInit.
func (c *KeeperConfig) BoxFiles() string { return filepath.Join(filepath.Dir(c.BoxInit), "boxfiles") }

// Greeting is the first word of a keeper. The form of its version, and of the requests Hello, Leave and
// Quit, is that of every version, so that each can send the other away.
type Greeting struct {
	Version  uint32
	Flags    []string
	Programs string
	Other    string // all but the version, of a keeper of another version
}

func (g *Greeting) fields(c *codec) {
	c.u32(&g.Version)
	if g.Version != KeeperVersion {
		c.rest(&g.Other)
		return
	}
	c.strs(&g.Flags)
	c.str(&g.Programs)
}
