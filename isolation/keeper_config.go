// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"path/filepath"
	"slices"
	"strconv"
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
	Group    string // control group that has been delegated to boxd, an absolute path; "": none
	Allow    []string
	Etc      []string
	Network  []string // as isolation/network has it
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
		"-ahead=" + strconv.Itoa(c.Ahead), "-store=" + strconv.FormatUint(c.Store, 10), "-group=" + c.Group,
	}
	for _, a := range c.Allow {
		flags = append(flags, "-allow="+a)
	}
	for _, e := range c.Etc {
		flags = append(flags, "-etc="+e)
	}
	for _, n := range c.Network {
		flags = append(flags, "-network="+n)
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

// Differs says what of a keeper's greeting is not as it should be, "" if it all is.
func (g *Greeting) Differs(want *Greeting) string {
	switch {
	case g.Version != want.Version:
		return "it speaks version " + strconv.FormatUint(uint64(g.Version), 10) + ", not " + strconv.FormatUint(uint64(want.Version), 10)
	case !slices.Equal(g.Flags, want.Flags):
		return "its flags are not those of the configuration: " + difference(g.Flags, want.Flags)
	case g.Programs != want.Programs && want.Programs != "":
		return "it runs an earlier program"
	}
	return ""
}

// difference shows the first flag in which two lists differ.
func difference(got, want []string) string {
	at := func(list []string, i int) string {
		if i < len(list) {
			return strconv.Quote(list[i])
		}
		return "nothing more"
	}
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	return at(got, i) + " instead of " + at(want, i)
}

func (e *encoder) greeting(g *Greeting) {
	e.u32(g.Version)
	if g.Version != KeeperVersion {
		e.b = append(e.b, g.Other...)
		return
	}
	e.strs(g.Flags)
	e.str(g.Programs)
}

func (d *decoder) greeting() *Greeting {
	g := &Greeting{Version: d.u32()}
	if d.bad || g.Version == KeeperVersion {
		g.Flags, g.Programs = d.strs(), d.str()
		return g
	}
	g.Other = string(d.take(len(d.b)))
	return g
}
