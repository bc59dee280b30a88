// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// The highest exposure levels that "systemd-analyze security" may report, in tenths, as measured; the units explain what prevents
// lower ones.
const (
	mostOfBoxd   = "20"
	mostOfKeeper = "70"
	mostOfAnchor = "40"
)

func TestSystemdFindsNothingWrongWithTheUnits(t *testing.T) {
	installed(t, this)
	// Manual pages cannot be found on a host without man.
	r := try(t, "systemd-analyze", "verify", "--man=no", socket, service, keeper, anchor, "boxd-names.socket", "boxd-names.service", "boxd-scopes.socket", "boxd-scopes.service", "boxd-files.socket", "boxd-files.service", "boxd-push.socket", "boxd-push@.service", "box.slice")
	if r.code != 0 || r.stdout+r.stderr != "" {
		t.Errorf(`systemd-analyze verify: r = %+v, want r.code == 0 and r.stdout + r.stderr == ""`, r)
	}
	for unit, most := range map[string]string{service: mostOfBoxd, keeper: mostOfKeeper, anchor: mostOfAnchor, "boxd-names.service": mostOfBoxd, "boxd-scopes.service": mostOfBoxd, "boxd-files.service": mostOfBoxd} {
		r := try(t, "systemd-analyze", "security", "--no-pager", "--threshold="+most, unit)
		if r.code != 0 {
			t.Errorf("systemd-analyze security:\n%s%s", r.stdout, r.stderr)
		}
	}
	for _, unit := range []string{service, keeper, anchor} {
		lines := strings.Split(try(t, "systemd-analyze", "security", "--no-pager", unit).stdout, "\n")
		t.Log(lines[max(0, len(lines)-2)])
	}
}

// A full disk at the start of boxd only prevents new sessions, which are refused with the reason.
func TestAFullDiskAtStart(t *testing.T) {
	installed(t, this)
	a := live(t)
	run(t, "systemctl", "stop", service)
	const filler = "/var/lib/boxd/filler"
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	t.Cleanup(func() { os.Remove(filler) })
	var fs unix.Statfs_t
	for size := int64(1 << 30); size >= 4096; size /= 2 { // to the last block
		for {
			at, err := f.Seek(0, 2)
			if err != nil {
				t.Fatal(err)
			}
			if unix.Fallocate(int(f.Fd()), 0, at, size) != nil {
				break
			}
		}
	}
	if err := unix.Statfs("/var/lib/boxd", &fs); err != nil || fs.Bavail > 16 {
		t.Fatalf("the disk is not full: fs = %+v, err = %v, want no error and fs.Bavail <= 16", fs, err)
	}
	if !a.initLives() {
		t.Error("the box has ended")
	}
	r := try(t, as(member, "boxctl", "run", "--", "true")...)
	// Whichever component needs disk space first reports it: the last block of the audit log may or may not have room for a record.
	if r.code == 0 || !strings.Contains(r.stderr, "no space left on device") || !strings.Contains(r.stderr, "hint: free ") {
		t.Errorf(`on a full disk: r = %+v, want r.code != 0 and r.stderr containing "no space left on device" and r.stderr containing "hint: free "`,
			r)
	}
	if p := process(t); p.PID != a.process.PID || p.State != "running" {
		t.Errorf(`on a full disk: p = %+v, want p.PID == %v and p.State == "running"`, p, a.process.PID)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	f.Close()
	boxtest.Eventually(t, "there is free space on the disk again", func() bool {
		return unix.Statfs("/var/lib/boxd", &fs) == nil && fs.Bavail > fs.Blocks/2
	})
	a.unharmed(t, "the disk was full")
	boxctl(t, "run", "--", "true")
}

// Nothing below /usr is ever written.
func TestAReadOnlyUsr(t *testing.T) {
	installed(t, this)
	run(t, "systemctl", "stop", socket, service, keeper, anchor)
	run(t, "mount", "--bind", "/usr", "/usr")
	t.Cleanup(func() {
		reset(t)
		run(t, "umount", "--lazy", "/usr")
	})
	run(t, "mount", "-o", "remount,bind,ro", "/usr")
	if err := os.WriteFile("/usr/boxd-test", nil, 0o644); err == nil {
		t.Fatal("/usr is not read-only")
	}
	run(t, "systemctl", "start", socket)
	a := live(t)
	run(t, "systemctl", "restart", service)
	a.unharmed(t, "a restart with a read-only /usr")
}

// news returns the lines that only one of two mount tables has, except those that systemd adds for credentials whenever it starts
// a service.
func news(before, after string) string {
	var list []string
	for _, tables := range [][2]string{{before, after}, {after, before}} {
		for line := range strings.Lines(tables[1]) {
			if !strings.Contains(tables[0], line) && !strings.Contains(line, " /run/credentials/") {
				list = append(list, line)
			}
		}
	}
	return strings.Join(list, "")
}

// Other services are not affected, whether they started before or while boxes run.
func TestOtherServicesAreNotAffected(t *testing.T) {
	installed(t, this)
	const unit = "boxd-test-other.service"
	strict := []string{"-p", "ProtectSystem=strict", "-p", "ProtectHome=yes", "-p", "PrivateTmp=yes", "-p", "PrivateDevices=yes", "-p", "StateDirectory=boxd-test-other"}
	// With Type=exec all its mounts exist when this returns.
	run(t, append(append([]string{"systemd-run", "-q", "--unit=" + unit, "-p", "Type=exec"}, strict...), "sleep", "infinity")...)
	t.Cleanup(func() {
		_ = try(t, "systemctl", "stop", unit)
		os.RemoveAll("/var/lib/boxd-test-other")
	})
	mounts := func(pid string) string {
		t.Helper()
		text, err := os.ReadFile("/proc/" + pid + "/mounts")
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	pid, host := boxtest.UnitProperty(t, unit, "MainPID"), mounts("self")
	before := mounts(pid)
	a := live(t)
	boxctl(t, "run", "--", "true")
	for what, was := range map[string][2]string{"an older service": {before, mounts(pid)}, "the host": {host, mounts("self")}} {
		if more := news(was[0], was[1]); more != "" {
			t.Errorf("with a box %s has other mounts:\n%s", what, more)
		}
	}
	if boxtest.UnitProperty(t, unit, "MainPID") != pid {
		t.Error("with a box an older service has died")
	}
	run(t, append(append([]string{"systemd-run", "-q", "--wait", "--pipe"}, strict...), "sh", "-c", "! touch /usr/x 2>/dev/null && ! touch /var/lib/boxd/x 2>/dev/null && touch /var/lib/boxd-test-other/x")...)
	a.unharmed(t, "another unit with ProtectSystem=strict")
	if n, err := strconv.Atoi(boxtest.UnitProperty(t, unit, "NRestarts")); err != nil || n != 0 {
		t.Errorf("an older service was started again: n = %d, err = %v, want no error and n == 0", n, err)
	}
}
