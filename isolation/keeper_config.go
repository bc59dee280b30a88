// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"path/filepath"
	"strconv"
	"time"
)

// KeeperConfig is what a keeper is started with. It comes from root as flags, and no request
// changes it; boxd replaces a keeper whose configuration differs.
type KeeperConfig struct {
	RunDir   string // holds the keeper's socket, and a directory for each living box
	StateDir string // holds the managed workspaces; 0700, or 0711 where boxd is not root
	BoxdUID  uint32 // the user of boxd, whom alone the keeper obeys
	BoxdGID  uint32 // its group; 0: boxd is root
	BoxInit  string // path of the program that becomes PID 1 of a box
	IDBase   uint32 // first host id of the first range, a multiple of IDRange
	IDCount  uint32 // number of ranges, one for each living box
	IDLock   string // file that reserves ranges among all keepers of the host
	Ahead    int    // number of boxes to prefork
	Store    uint64 // size of the store in bytes, where the state directory has no quotas; 0: no store
	// StoreFilesystem is the type of a store that has yet to be made: StoreExt4 or StoreXFS.
	StoreFilesystem string
	Workspaces      int // most workspaces, named ones and images included; 0: any number

	Group    string // cgroup that has been delegated to boxd, an absolute path; "": none
	Allow    []string
	Etc      []string
	Network  []string      // in the form of isolation/network
	Patience time.Duration // timeout for filesystems that callers name; 0: some seconds

	AIO        bool     // programs may use io_setup(2), of which the host has a limited number
	FileLocks  int      // file locks that the programs of a box may hold; a box with more is ended; 0: any number
	QuotaRoots []string // directories of the host below which directories can have quotas
}

// Filesystems of a store.
const (
	StoreExt4 = "ext4"
	StoreXFS  = "xfs" // its files can share blocks, as snapshots do
)

// Names in the run directory.
const (
	KeeperDir    = "keeper" // for the keeper, 0700, or 0750 where the group of boxd may enter
	KeeperSocket = "socket" // in KeeperDir
	BoxesDir     = "boxes"  // holds a directory for each box, 0700
)

// Flags returns the flags of a keeper with this configuration, always in the same order.
func (c *KeeperConfig) Flags() []string {
	flags := []string{
		"-run=" + c.RunDir, "-state=" + c.StateDir, "-boxinit=" + c.BoxInit, "-boxd-uid=" + strconv.FormatUint(uint64(c.BoxdUID), 10), "-boxd-gid=" + strconv.FormatUint(uint64(c.BoxdGID), 10),
		"-id-base=" + strconv.FormatUint(uint64(c.IDBase), 10), "-id-count=" + strconv.FormatUint(uint64(c.IDCount), 10), "-id-lock=" + c.IDLock,
		"-ahead=" + strconv.Itoa(c.Ahead), "-store=" + strconv.FormatUint(c.Store, 10), "-store-filesystem=" + c.StoreFilesystem, "-group=" + c.Group, "-patience=" + c.Patience.String(),
		"-file-locks=" + strconv.Itoa(c.FileLocks), "-workspaces=" + strconv.Itoa(c.Workspaces),
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

// BoxFiles returns the path of the program that serves files in boxes, in the same directory as
// BoxInit.
func (c *KeeperConfig) BoxFiles() string { return filepath.Join(filepath.Dir(c.BoxInit), "boxfiles") }

// BoxNet returns the path of the program that has the network of boxes, in the same directory.
func (c *KeeperConfig) BoxNet() string { return filepath.Join(filepath.Dir(c.BoxInit), "boxnet") }

// Greeting is the first message of a keeper. The form of its version, and of the requests Hello,
// Leave and Quit, is the same in every version, so that each side can tell the other to leave.
type Greeting struct {
	Version  uint32
	Flags    []string
	Programs string
	Other    string // the rest of the message, if the keeper has another version
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
