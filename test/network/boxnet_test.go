// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// boxnet may die at any time: boxes keep their network, it is started again for the next request, and it still watches what it
// has to.
func TestBoxnetMayDie(t *testing.T) {
	w := newWorld(t)
	d := boxtest.Start(t, boxtest.Lasting+configuration)
	d.NewSession(t, egress("one", public4+"/32 tcp 80"))
	kill := func() {
		t.Helper()
		var pid int
		boxtest.Eventually(t, "boxnet runs, as a box has a network", func() (exists bool) {
			pid, exists = boxnet(t, d)
			return exists
		})
		must(t, unix.Kill(pid, unix.SIGKILL))
		boxtest.Eventually(t, "boxnet is dead", func() bool {
			now, exists := boxnet(t, d)
			return !exists || now != pid
		})
	}
	kill()
	if got := reach(t, d, "one", public4, 80); !strings.HasPrefix(got, "tcp ") {
		t.Errorf(`a box whose boxnet has died reaches nothing: got %q, want got starting with "tcp "`, got)
	}
	d.NewSession(t, egress("two", public4+"/32 tcp 80"))
	if got := reach(t, d, "two", public4, 80); !strings.HasPrefix(got, "tcp ") {
		t.Errorf(`a box that was made afterwards reaches nothing: got %q, want got starting with "tcp "`, got)
	}
	if n := len(w.links()); n != 2 {
		t.Errorf("%d links of two boxes", n)
	}
	kill()
	must(t, d.DeleteSession(t.Context(), "two"))
	boxtest.Eventually(t, "the link of a box that ends while boxnet is dead is removed", func() bool { return len(w.links()) == 1 })
	// Without any request, boxnet is started again to watch the host's table.
	kill()
	boxtest.Eventually(t, "boxnet is started again", func() bool {
		_, exists := boxnet(t, d)
		return exists
	})
	c, err := nftables.New()
	must(t, err)
	c.FlushRuleset()
	must(t, c.Flush())
	boxtest.Eventually(t, "the table of the host is there again", func() bool { return len(tables(t)) == 1 })
	must(t, d.DeleteSession(t.Context(), "one"))
	boxtest.Eventually(t, "boxnet has ended, as no box needs it", func() bool {
		_, exists := boxnet(t, d)
		return !exists && len(tables(t)) == 0
	})
}

// If keeper and boxnet die together while boxes have networks, the next keeper adopts the boxes with a new boxnet.
func TestBoxnetDiesWithTheKeeper(t *testing.T) {
	w := newWorld(t)
	d := boxtest.Start(t, boxtest.Lasting+configuration)
	d.NewSession(t, egress("one", public4+"/32 tcp 80"))
	old, exists := boxnet(t, d)
	if !exists {
		t.Fatal("a box has a network, and boxnet does not run")
	}
	must(t, unix.Kill(d.Keeper(), unix.SIGKILL))
	boxtest.Eventually(t, "boxnet has ended with its keeper", func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", old))
		return err != nil || strings.Contains(string(status), "State:\tZ") // its new parent may not have reaped it
	})
	boxtest.Eventually(t, "another boxnet runs", func() bool {
		now, exists := boxnet(t, d)
		return exists && now != old
	})
	if got := reach(t, d, "one", public4, 80); !strings.HasPrefix(got, "tcp ") {
		t.Errorf(`afterwards the box reaches nothing: got %q, want got starting with "tcp "`, got)
	}
	must(t, d.DeleteSession(t.Context(), "one"))
	boxtest.Eventually(t, "no link is left", func() bool { return len(w.links()) == 0 })
}

// boxnet has three capabilities and no descriptor of the keeper.
func TestBoxnetHasFewPrivileges(t *testing.T) {
	newWorld(t)
	d := boxtest.Start(t, configuration)
	if pid, exists := boxnet(t, d); exists {
		t.Errorf("boxnet runs as %d, and no box has a network", pid)
	}
	d.NewSession(t, egress("one", public4+"/32 tcp 80"))
	pid, exists := boxnet(t, d)
	if !exists {
		t.Fatal("boxnet does not run")
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	want := fmt.Sprintf("%016x", 1<<unix.CAP_NET_ADMIN|1<<unix.CAP_SYS_ADMIN|1<<unix.CAP_NET_BIND_SERVICE)
	for _, set := range []string{"CapPrm", "CapEff"} {
		if !strings.Contains(string(status), "\n"+set+":\t"+want+"\n") {
			t.Errorf("%s is not %s:\n%s", set, want, status)
		}
	}
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	must(t, err)
	for _, name := range files {
		to, err := os.Readlink(name)
		switch {
		case err != nil: // closed meanwhile
		case to == "/etc/resolv.conf", strings.HasPrefix(to, "/proc/"), strings.HasPrefix(to, "net:"): // it reads these now and then
		case strings.HasPrefix(to, "/sys/fs/cgroup/"): // the Go runtime reads the number of available processors there
		case strings.HasPrefix(to, "socket:"), strings.HasPrefix(to, "anon_inode:"), to == os.DevNull, strings.HasSuffix(to, "/log"), strings.HasSuffix(to, "/network-lock"):
		default:
			t.Errorf("it has %s open", to)
		}
	}
}

// boxnet finds the keeper's boxnet process.
func boxnet(t *testing.T, d *boxtest.Daemon) (pid int, there bool) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	for _, path := range all {
		line, _ := os.ReadFile(path)
		status, _ := os.ReadFile(filepath.Dir(path) + "/status")
		if strings.HasPrefix(string(line), "boxnet\x00") && strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", d.Keeper())) && !strings.Contains(string(status), "State:\tZ") {
			pid, err = strconv.Atoi(filepath.Base(filepath.Dir(path)))
			must(t, err)
			return pid, true
		}
	}
	return 0, false
}
