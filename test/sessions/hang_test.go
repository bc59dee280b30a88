// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// hanging is a FUSE filesystem of a user with allow_other: an empty directory, for as long as it answers.
type hanging struct {
	at     string
	dev    *os.File
	silent atomic.Bool // it reads requests and answers none
}

// hang mounts a hanging filesystem. A deaf one does not even read requests.
func hang(t *testing.T, at string, deaf bool) *hanging {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = unix.Mount("hanging", at, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd))
	h := &hanging{at: at, dev: os.NewFile(uintptr(fd), "fuse")} // only now can the poller wait for it
	t.Cleanup(h.end)
	if err != nil {
		t.Fatal(err)
	}
	if !deaf {
		go h.serve() // until end
	}
	return h
}

// end unmounts the filesystem and releases every process that waits for it.
func (h *hanging) end() {
	_ = unix.Unmount(h.at, unix.MNT_FORCE|unix.MNT_DETACH)
	h.dev.Close()
}

// Opcodes of FUSE requests.
const (
	fuseGetattr = 3
	fuseStatfs  = 17
	fuseInit    = 26
	fuseAccess  = 34
)

func (h *hanging) serve() {
	buf := make([]byte, 1<<17)
	for {
		n, err := h.dev.Read(buf)
		if errors.Is(err, os.ErrClosed) || errors.Is(err, unix.ENODEV) {
			return
		}
		op := binary.LittleEndian.Uint32(buf[4:])
		if err != nil || n < 16 || h.silent.Load() && op != fuseInit {
			continue
		}
		body, status := []byte(nil), uint32(0)
		switch op {
		case fuseInit:
			body = make([]byte, 64)
			binary.LittleEndian.PutUint32(body, 7)
			binary.LittleEndian.PutUint32(body[4:], 31)
			binary.LittleEndian.PutUint32(body[20:], 4096)
		case fuseGetattr:
			body = make([]byte, 16+88)
			binary.LittleEndian.PutUint64(body[16:], 1)
			binary.LittleEndian.PutUint32(body[16+60:], 0o40755)
			binary.LittleEndian.PutUint32(body[16+64:], 2)
		case fuseStatfs:
			body = make([]byte, 80)
		case fuseAccess:
		default:
			status = ^uint32(unix.ENOSYS) + 1
		}
		head := binary.LittleEndian.AppendUint32(nil, uint32(16+len(body)))
		head = binary.LittleEndian.AppendUint32(head, status)
		_, _ = h.dev.Write(append(append(head, buf[8:16]...), body...))
	}
}

// A mount source on a filesystem that does not answer is refused by its field, for a new and for a running session, and holds up
// neither other sessions nor the next boxd. Once a request was read, the kernel waits for its answer even if the waiting process
// is killed.
func TestAFilesystemThatHangsHoldsUpNobody(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting, boxtest.MountSources)
	ok := d.NamedMountSource(t, "ok", 0)
	deaf := hang(t, d.NamedMountSource(t, "deaf", 0), true)
	silent := hang(t, d.NamedMountSource(t, "silent", 0), false)
	silent.silent.Store(true)
	starting := make(chan error, 2)
	start := func(id, source string) {
		_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: id, Mounts: []api.Mount{{Source: source, Target: "/mnt/x", Mode: "ro"}}})
		starting <- err
	}
	for _, source := range []string{deaf.at, silent.at} {
		id := filepath.Base(source)
		var refused error
		boxtest.Eventually(t, "another session starts while the one with the hanging filesystem waits", func() bool {
			go start("hangs", source)
			d.NewSession(t, api.SessionRequest{ID: id, Mounts: []api.Mount{{Source: ok, Target: "/mnt/x", Mode: "ro"}}})
			d.Sh(t, id, "cat /mnt/x/name")
			select {
			case refused = <-starting: // on a slow host this may take longer than patience once
				if err := d.DeleteSession(t.Context(), id); err != nil {
					t.Fatal(err)
				}
				return false
			default:
				refused = <-starting
				return true
			}
		})
		if e := problemOf(t, refused); e.Status != 503 || e.Field != "mounts[0].source" || e.Value != source || !strings.Contains(e.Detail, "15s") {
			t.Errorf(`%s: e.Problem = %+v, want e.Status == 503 and e.Field == "mounts[0].source" and e.Value == source and e.Detail containing "15s"`,
				source, e.Problem)
		}
		_, _, err := d.AddMount(t.Context(), id, &api.MountRequest{Source: source, Target: "/mnt/y", Mode: "ro"})
		if e := problemOf(t, err); e.Status != 503 || e.Field != "source" {
			t.Errorf(`added to a running session, %s: e.Problem = %+v, want e.Status == 503 and e.Field == "source"`, source, e.Problem)
		}
	}
	boxtest.Eventually(t, "the log names the worker that cannot be killed", func() bool { return strings.Contains(d.Log(), "cannot kill a worker that waits for a filesystem") })
	go start("hangs", silent.at)
	d.Kill()
	if err := <-starting; err == nil {
		t.Error("no error for a session with a filesystem that hangs")
	}
	d.Restart()
	d.Sh(t, "deaf", "cat /mnt/x/name")

	// A mount that hangs later on can be removed by force, and does not keep its session from ending.
	later := hang(t, filepath.Join(d.Dir, "lent", "ok"), false)
	mount(t, d, "deaf", api.MountRequest{Source: later.at, Target: "/mnt/y"})
	mount(t, d, "silent", api.MountRequest{Source: later.at, Target: "/mnt/y"})
	later.silent.Store(true)
	if err := d.RemoveMount(t.Context(), "deaf", "/mnt/y", true); err != nil {
		t.Error(err)
	}
	for _, id := range []string{"deaf", "silent"} {
		if err := d.DeleteSession(t.Context(), id); err != nil && !errors.Is(err, client.NotFound) {
			t.Error(err)
		}
	}
	for _, h := range []*hanging{deaf, silent, later} {
		h.end()
	}
	boxtest.Eventually(t, "no process is blocked by the filesystem", func() bool {
		for _, pid := range boxtest.Children(t, d.Keeper()) {
			if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(text), ") S ") {
				return false
			}
		}
		return true
	})
}
