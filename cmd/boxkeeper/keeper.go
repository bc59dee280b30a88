// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"log"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/disk"
	"github.com/boxd-dev/boxd/isolation/mounts"
	"github.com/boxd-dev/boxd/isolation/network/rule"
	"github.com/boxd-dev/boxd/isolation/seccomp"
)

// config is what the keeper allows. It comes from root, and no request changes it.
type config struct {
	isolation.KeeperConfig
	Linger bool // wait for the next boxd even when no box is alive
	Log    *log.Logger
}

// endTimeout bounds what takes milliseconds when all is well.
const endTimeout = 30 * time.Second

// keeper serves one boxd at a time, and watches its boxes even while there is none.
type keeper struct {
	cfg        config
	run        *place
	listener   *fdpass.Listener
	greeting   isolation.Greeting
	boxInit    int // descriptor of cfg.BoxInit
	boxFiles   int // descriptor of the program that serves files in boxes, in the same directory as BoxInit
	filters    map[filterOf]seccomp.Filter
	state      string // state directory, without symbolic links
	ids        *idRanges
	users      mounts.UserNamespaces
	sources    *mounts.Sources
	zygotes    zygoteSet
	bases      hostBases
	ahead      preforkPool
	groups     groups
	work       *disk.Workspaces
	hostQuotas *disk.HostQuotas // quotas on directories of the host
	records    *recordDir
	net        *networkProgram
	shared     []string        // profiles whose boxes use the network of the host
	possible   string          // the processors that the kernel may have, see isolation.View
	damaged    map[string]bool // boxes whose records cannot be read, which are left alone
	ended      chan struct{}   // receives a value when a box has ended

	mu       sync.Mutex // guards the fields below
	boxes    map[string]*box
	hoarders lockHoarders
}

// newKeeper checks the configuration, prepares what all boxes share, and adopts the boxes that an
// earlier keeper has left. It first waits until that keeper has ended.
func newKeeper(cfg config) (*keeper, error) {
	if cfg.IDBase%isolation.IDRange != 0 || cfg.IDBase == 0 || cfg.IDCount == 0 ||
		uint64(cfg.IDBase)+uint64(cfg.IDCount)*isolation.IDRange > 1<<32-isolation.IDRange {
		return nil, fmt.Errorf("id ranges %d+%d: want a multiple of %d, and all below 2³²", cfg.IDBase, cfg.IDCount, isolation.IDRange)
	}
	// Any other descriptor that boxd was started with ends here: otherwise a program in a box
	// would inherit it.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, fmt.Errorf("close on exec: %w", err)
	}
	// PID 1 processes of a zygote that has ended become children of the keeper, which reaps them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("subreaper: %w", err)
	}
	k := &keeper{
		cfg: cfg, boxes: map[string]*box{}, damaged: map[string]bool{}, ended: make(chan struct{}, 1), boxInit: -1, boxFiles: -1,
		ahead: preforkPool{want: cfg.Ahead}, ids: newIDRanges(cfg.IDLock, cfg.IDBase, cfg.IDCount),
	}
	if err := k.prepare(); err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

func (k *keeper) prepare() error {
	state, err := filepath.EvalSymlinks(k.cfg.StateDir) // as the sources of mounts are compared with it
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	k.state = state
	possible, _ := os.ReadFile("/sys/devices/system/cpu/possible") // boxes of a host without it show none
	k.possible = string(possible)
	if k.sources, err = mounts.OpenSources(state, &k.cfg.KeeperConfig, &k.users, k.cfg.Log); err != nil {
		return err
	}
	k.filters = map[filterOf]seccomp.Filter{}
	for _, of := range []filterOf{{}, {hostWritable: true}, {root: true}, {hostWritable: true, root: true}} {
		f, err := seccomp.Compile(seccomp.Default(), seccomp.Options{Arch: runtime.GOARCH, HostWritable: of.hostWritable, Root: of.root, AIO: k.cfg.AIO})
		if err != nil {
			return err
		}
		k.filters[of] = f
	}
	if k.boxInit, err = unix.Open(k.cfg.BoxInit, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open %s: %w", k.cfg.BoxInit, err)
	}
	if k.boxFiles, err = unix.Open(k.cfg.BoxFiles(), unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open %s: %w", k.cfg.BoxFiles(), err)
	}
	net, err := rule.ParseConfig(k.cfg.RunDir, k.cfg.Network)
	if err != nil {
		return err
	}
	if k.run, err = openPlace(k.cfg.RunDir, int(k.cfg.BoxdGID)); err != nil {
		return err
	}
	if k.work, err = disk.OpenWorkspaces(state, k.cfg.StoreFilesystem, k.cfg.Store, k.cfg.Workspaces, int(k.cfg.BoxdGID), k.cfg.Log); err != nil {
		return err
	}
	if kind := k.work.StoreFilesystem(); kind != "" && kind != k.cfg.StoreFilesystem {
		k.cfg.Log.Printf("the store in %s was created as %s: workspaces.store_filesystem = %q is for a new one", state, kind, k.cfg.StoreFilesystem)
	}
	if err := k.work.SweepSnapshots(); err != nil {
		k.cfg.Log.Printf("cannot remove leftover snapshots: %v", err) // the next keeper tries again
	}
	k.hostQuotas = disk.OpenHostQuotas(state, k.cfg.QuotaRoots, k.cfg.Log)
	k.zygotes = zygoteSet{BoxInit: k.boxInit, BoxFiles: k.boxFiles, Etc: k.cfg.Etc, Open: k.work.OpenTree}
	k.bases = hostBases{program: k.boxFiles, reader: k.cfg.IDBase + nobody, work: k.work, zygotes: &k.zygotes, log: k.cfg.Log}
	if k.records, err = openRecords(k.cfg.RunDir); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	k.shared = net.Shared
	if k.net, err = openNetworkProgram(&k.cfg, k.known); err != nil {
		return err
	}
	if err := k.adoptBoxes(); err != nil {
		return err
	}
	if len(k.known()) == 0 { // otherwise they may use what an earlier keeper has made
		if err := k.work.DropBase(""); err != nil {
			k.cfg.Log.Printf("cannot remove leftover copies of /etc: %v", err)
		}
	}
	if err := k.greet(); err != nil {
		return err
	}
	k.listener, err = k.run.listen()
	return err
}

// close releases everything. Living boxes are left to the next keeper.
func (k *keeper) close() {
	if k.listener != nil { // first of all: a boxd that is refused here starts another keeper
		k.listener.Close()
		k.run.hide()
	}
	k.sources.Close()
	k.ahead.close(k.ids)
	k.zygotes.Close()
	k.bases.Close()
	k.users.Close()
	k.groups.close()
	k.ids.Close()
	if k.work != nil {
		k.work.Close(!k.idle() || len(k.damaged) > 0)
	}
	if k.hostQuotas != nil {
		k.hostQuotas.Close()
	}
	if k.net != nil {
		k.net.close()
	}
	if k.records != nil {
		k.records.Close()
	}
	if k.run != nil {
		k.run.Close()
	}
	unix.Close(k.boxInit)
	unix.Close(k.boxFiles)
}

// known returns the keys of the boxes that are alive, or not known to be dead.
func (k *keeper) known() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.AppendSeq(slices.Collect(maps.Keys(k.boxes)), maps.Keys(k.damaged))
}

// idle reports whether no box is alive.
func (k *keeper) idle() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.boxes) == 0
}
