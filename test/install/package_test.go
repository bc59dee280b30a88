// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// version returns the version field of a package.
func version(t *testing.T, name string) string {
	t.Helper()
	return run(t, "dpkg-deb", "--field", pkg(t, name), "Version")
}

// An upgrade and a downgrade replace boxd and its keeper, but no box; the administrator's configuration is kept.
func TestAnUpgradeAndADowngradeWithLivingBoxes(t *testing.T) {
	installed(t, previous)
	a := live(t)
	holder := boxtest.UnitProperty(t, anchor, "MainPID")
	const dropIn = "/etc/boxd/box.toml.d/mine.toml"
	if err := os.MkdirAll(filepath.Dir(dropIn), 0o755); err != nil {
		t.Fatal(err)
	}
	original, err := os.ReadFile("/etc/boxd/box.toml")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		os.RemoveAll(filepath.Dir(dropIn))
		if err := os.WriteFile("/etc/boxd/box.toml", original, 0o644); err != nil {
			t.Error(err)
		}
	})
	changed := append(bytes.Clone(original), "# changed by the administrator\n"...)
	if err := os.WriteFile("/etc/boxd/box.toml", changed, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dropIn, []byte("[sessions]\nmax = 11\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{this, previous, this} {
		pids := [2]string{boxtest.UnitProperty(t, service, "MainPID"), boxtest.UnitProperty(t, keeper, "MainPID")}
		apt(t, "install", pkg(t, to))
		if !a.initLives() {
			t.Fatalf("the box has died with the installation of %s", to)
		}
		boxtest.Eventually(t, "the installed boxd answers", func() bool {
			r := try(t, as(member, "boxctl", "version")...)
			return strings.Count(r.stdout, version(t, to)) == 2
		})
		if now := [2]string{boxtest.UnitProperty(t, service, "MainPID"), boxtest.UnitProperty(t, keeper, "MainPID")}; now[0] == pids[0] || now[1] == pids[1] || now[1] == "0" {
			t.Errorf(`processes of boxd and keeper were %q and are %q, want now[0] != pids[0] and now[1] != pids[1] and now[1] != "0"`,
				pids, now)
		}
		a.unharmed(t, "the installation of "+version(t, to))
		if text, err := os.ReadFile("/etc/boxd/box.toml"); err != nil || !bytes.Equal(text, changed) {
			t.Errorf("the configuration has changed: err = %v, want no error and text equal to changed", err)
		}
		if got := boxctl(t, "status", "--json"); !strings.Contains(got, `"max_sessions": 11`) {
			t.Errorf("the drop-in was removed: got %s, want got containing `\"max_sessions\": 11`", got)
		}
	}
	if got := boxtest.UnitProperty(t, anchor, "MainPID"); got != holder {
		t.Errorf("the anchor's process was %s and is %s, want got == holder", holder, got)
	}
}

// An upgrade leaves units stopped and disabled that the administrator has stopped and disabled.
func TestAnUpgradeOfADisabledSocket(t *testing.T) {
	installed(t, previous)
	run(t, "systemctl", "disable", "--now", socket)
	run(t, "systemctl", "stop", service)
	t.Cleanup(func() { run(t, "systemctl", "enable", "--now", socket) })
	apt(t, "install", pkg(t, this))
	if r := try(t, "systemctl", "is-enabled", socket); strings.TrimSpace(r.stdout) != "disabled" {
		t.Errorf(`it is %+v, want strings.TrimSpace(r.stdout) == "disabled"`, r)
	}
	for _, unit := range []string{socket, service, keeper} {
		if got := state(t, unit); got != "inactive" {
			t.Errorf(`%s is %s, want got == "inactive"`, unit, got)
		}
	}
}

// others returns paths that other programs change while a package is installed and removed.
func others() []string {
	return []string{
		"/var/lib/dpkg", "/var/backups", "/var/lib/apt", "/var/cache", "/var/log", "/var/lib/systemd/timers", "/var/lib/systemd/random-seed", "/tmp", "/var/tmp", "/suite",
		"/etc/group-", "/etc/gshadow-", "/etc/passwd-", "/etc/shadow-", "/etc/subuid-", "/etc/subgid-", "/home", "/root",
		"/run/systemd", "/run/udev", "/run/log", "/run/user", "/run/dbus", "/run/lock", "/run/mount", "/run/utmp", "/run/initctl",
	}
}

// files returns all files of the host that a package could leave, with type and content.
func files(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, root := range []string{"/", "/run", "/var/lib/boxd"} {
		var top syscall.Stat_t
		if err := syscall.Lstat(root, &top); err != nil {
			t.Fatal(err)
		}
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := e.Info()
			if err != nil {
				return err
			}
			st := info.Sys().(*syscall.Stat_t)
			if slices.Contains(others(), path) || e.IsDir() && st.Dev != top.Dev {
				if e.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
			line := fmt.Sprintf("%v %d:%d", info.Mode(), st.Uid, st.Gid)
			switch {
			case info.Mode().IsRegular() && strings.HasPrefix(path, "/etc/"):
				text, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				line += fmt.Sprintf(" %x", sha256.Sum256(text))
			case info.Mode().IsRegular():
				line += fmt.Sprintf(" %d", info.Size())
			case info.Mode().Type() == fs.ModeSymlink:
				to, err := os.Readlink(path)
				if err != nil {
					return err
				}
				line += " " + to
			}
			found[path] = line
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// differences returns the files that have changed.
func differences(before, after map[string]string) (list []string) {
	for _, path := range slices.Sorted(maps.Keys(after)) {
		if old, ok := before[path]; !ok {
			list = append(list, "new "+path+" "+after[path])
		} else if old != after[path] {
			list = append(list, path+" was "+old+" and is "+after[path])
		}
	}
	for _, path := range slices.Sorted(maps.Keys(before)) {
		if _, ok := after[path]; !ok {
			list = append(list, "lost "+path)
		}
	}
	return list
}

// A removal keeps the configuration and a purge deletes it; workspaces of boxes are kept, and reported. Boxes are ended, since
// nothing would manage them.
func TestRemovalAndPurge(t *testing.T) {
	pkg(t, this)
	users(t)
	run(t, "dpkg", "--purge", "boxd")
	_ = try(t, "groupdel", "boxd") // with the members of earlier tests
	if err := os.RemoveAll("/var/lib/boxd/workspaces"); err != nil {
		t.Fatal(err)
	}
	before := files(t)
	installed(t, this)
	a := live(t)
	boxctl(t, "exec", "alive", "--", "sh", "-c", "echo precious >file")
	boxctl(t, "create", "--network", "egress", "out")
	if got := run(t, "nft", "list", "tables"); !strings.Contains(got, "boxd-") {
		t.Errorf(`tables while a box has a network: got %s, want got containing "boxd-"`, got)
	}
	apt(t, "remove", "boxd")
	boxtest.Eventually(t, "the box has ended", func() bool { return !a.initLives() })
	if got := run(t, "nft", "list", "tables") + run(t, "ip", "-o", "link"); strings.Contains(got, "boxd-") || strings.Contains(got, ": bx") {
		t.Errorf("the removal leaves in the host's network\n%s", got)
	}
	for _, unit := range []string{socket, service, keeper, anchor} {
		if got := state(t, unit); got != "inactive" {
			t.Errorf(`after the removal %s is %s, want got == "inactive"`, unit, got)
		}
	}
	if _, err := os.Stat("/etc/boxd/box.toml"); err != nil {
		t.Errorf("the removal of the package removed the configuration: %v", err)
	}
	said := apt(t, "purge", "boxd")
	if !strings.Contains(said.stdout+said.stderr, "are kept in /var/lib/boxd") {
		t.Errorf("the removal does not mention the workspaces:\n%s%s", said.stdout, said.stderr)
	}
	left, _ := filepath.Glob("/var/lib/boxd/workspaces/*/file")
	deeper, _ := filepath.Glob("/var/lib/boxd/workspaces/*/*/file")
	if left = append(left, deeper...); len(left) != 1 {
		t.Errorf("left of the workspace: left = %q, want len(left) == 1", left)
	}
	if err := os.RemoveAll("/var/lib/boxd/workspaces"); err != nil {
		t.Fatal(err)
	}
	if diff := differences(before, files(t)); len(diff) > 0 {
		t.Errorf("a purge leaves\n%s", strings.Join(diff, "\n"))
	}
	// Without workspaces the purge prints nothing about them.
	installed(t, this)
	boxctl(t, "run", "--", "true")
	if said := apt(t, "purge", "boxd"); strings.Contains(said.stdout+said.stderr, "are left") {
		t.Errorf("a purge prints\n%s%s", said.stdout, said.stderr)
	}
	if diff := differences(before, files(t)); len(diff) > 0 {
		t.Errorf("a purge without workspaces leaves\n%s", strings.Join(diff, "\n"))
	}
}

// withoutQuotas removes the package, and gives it a state directory on the root disk, which has no quotas, until the test ends.
func withoutQuotas(t *testing.T) {
	t.Helper()
	pkg(t, this)
	run(t, "dpkg", "--purge", "boxd")
	// Here the directory is on another disk, which systemd would mount again: so this is mounted over it.
	plain, err := os.MkdirTemp("/var/tmp", "boxd") //nolint:usetesting // t.TempDir may be in memory
	if err != nil {
		t.Fatal(err)
	}
	run(t, "mount", "--bind", plain, "/var/lib/boxd")
	t.Cleanup(func() {
		run(t, "dpkg", "--purge", "boxd")
		run(t, "umount", "--recursive", "/var/lib/boxd")
		os.RemoveAll(plain)
	})
}

// A keeper confined by its unit can also create an xfs store, in which a stopped box can be restored to a snapshot.
func TestTheStoreCanBeXFSForSnapshots(t *testing.T) {
	withoutQuotas(t)
	put(t, map[string]string{"/etc/boxd/box.toml.d/50-store.toml": "[workspaces]\nstore_filesystem = \"xfs\"\n"})
	installed(t, this)
	boxctl(t, "create", "--ttl", "1h", "--workspace-quota", "16MiB", "work")
	if got := run(t, "findmnt", "--noheadings", "--output", "FSTYPE", "/var/lib/boxd/store"); got != "xfs" {
		t.Errorf(`the store is %q, want "xfs"`, got)
	}
	boxctl(t, "exec", "work", "--", "sh", "-c", "echo before >file; ! head -c 32000000 /dev/zero >big && rm big")
	boxctl(t, "stop", "work")
	boxctl(t, "snapshots", "create", "work", "one")
	run(t, "systemctl", "restart", keeper, service)
	boxctl(t, "start", "work")
	boxctl(t, "exec", "work", "--", "sh", "-c", "echo after >file")
	boxctl(t, "stop", "work")
	boxctl(t, "snapshots", "restore", "work", "one")
	boxctl(t, "start", "work")
	if got := boxctl(t, "exec", "work", "--", "cat", "file"); got != "before" {
		t.Errorf(`back it has %q, want "before"`, got)
	}
	boxctl(t, "rm", "work")
	apt(t, "remove", "boxd")
	noLoopDevices(t)
}

// noLoopDevices waits until there is no loop device: udev may have one open for a moment when it goes.
func noLoopDevices(t *testing.T) {
	t.Helper()
	boxtest.Eventually(t, "no loop device is left", func() bool { return run(t, "losetup", "--list", "--noheadings") == "" })
}

// On most hosts the disk has no project quotas: there the keeper creates the store, whose mount must reach boxd, survive the
// keeper, and be removed with the package.
func TestTheStoreOfAHostWithoutQuotas(t *testing.T) {
	withoutQuotas(t)
	installed(t, this)
	a := live(t)
	if got := a.session.Enforcement["workspace"]; got != "store" {
		t.Fatalf("the quota of the workspace is enforced by %q", got)
	}
	boxctl(t, "exec", "alive", "--", "sh", "-c", "echo precious >file")
	boxctl(t, "run", "--workspace-quota", "8MiB", "--", "sh", "-c", "! head -c 32000000 /dev/zero >big")
	for _, unit := range []string{service, keeper} {
		run(t, "systemctl", "restart", unit)
		a.unharmed(t, "a restart of "+unit)
	}
	boxctl(t, "run", "--", "true")
	// boxd has its own mount namespace and may see it twice: there its state directory is a mount too.
	for pid, most := range map[string]int{"self": 1, boxtest.UnitProperty(t, service, "MainPID"): 2} {
		text, err := os.ReadFile("/proc/" + pid + "/mounts")
		if n := strings.Count(string(text), " /var/lib/boxd/store "); err != nil || n < 1 || n > most {
			t.Errorf("mounts of process %s: err = %v, want no error and n >= 1 and n <= most:\n%s", pid, err, text)
		}
	}
	apt(t, "remove", "boxd")
	noLoopDevices(t)
	if said := apt(t, "purge", "boxd"); !strings.Contains(said.stdout+said.stderr, "are kept in /var/lib/boxd") {
		t.Errorf("a purge with workspaces in the store prints\n%s%s", said.stdout, said.stderr)
	}
	if list, err := os.ReadDir("/var/lib/boxd"); err != nil || len(list) != 1 || list[0].Name() != "store.img" {
		t.Errorf(`left: list = %v, err = %v, want no error and len(list) == 1 and list[0].Name() == "store.img"`,
			list, err)
	}
	if err := os.Remove("/var/lib/boxd/store.img"); err != nil {
		t.Error(err)
	}
	// Without a box there are no workspaces in it.
	installed(t, this)
	boxctl(t, "run", "--", "true")
	apt(t, "purge", "boxd")
	if list, err := os.ReadDir("/var/lib/boxd"); err != nil || len(list) > 0 {
		t.Errorf("left: list = %v, err = %v, want no error and len(list) == 0", list, err)
	}
}

// The .rpm is installed into a copy of this host with the programs that its scripts need, upgraded and removed. No service
// manager runs in that copy.
func TestTheRPM(t *testing.T) {
	file := pkg(t, "boxd.rpm")
	older := pkg(t, "boxd-previous.rpm")
	run(t, "dpkg", "--purge", "boxd") // of the host; otherwise the copy would contain it
	dir := boxtest.TempDir(t)
	run(t, "mount", "-t", "tmpfs", "tmpfs", dir)
	t.Cleanup(func() { run(t, "umount", "--recursive", dir) })
	root, up, work := filepath.Join(dir, "root"), filepath.Join(dir, "up"), filepath.Join(dir, "work")
	for _, d := range []string{root, up, work} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "mount", "-t", "overlay", "-o", "lowerdir=/,upperdir="+up+",workdir="+work, "overlay", root)
	run(t, "mount", "-t", "proc", "proc", filepath.Join(root, "proc")) // for systemd-tmpfiles
	rpm := func(args ...string) {
		t.Helper()
		// The host's packages are managed by dpkg, so rpm knows none of them.
		if r := try(t, append([]string{"rpm", "--root", root, "--nodeps"}, args...)...); r.code != 0 || strings.Contains(r.stderr, "scriptlet") {
			t.Fatalf(`rpm %q: r = %+v, want r.code == 0 and r.stderr without "scriptlet"`, args, r)
		}
	}
	exists := func(path string) bool {
		_, err := os.Lstat(filepath.Join(root, path))
		return err == nil
	}
	enabled := "/etc/systemd/system/sockets.target.wants/boxd.socket"
	rpm("-i", older)
	for _, path := range []string{"/usr/lib/boxd/boxd", "/usr/bin/boxctl", "/etc/boxd/box.toml", "/usr/lib/systemd/system/boxd.socket", "/run/boxd", enabled} {
		if !exists(path) {
			t.Errorf("the installation lacks %s", path)
		}
	}
	if group := run(t, "grep", "^boxd:", filepath.Join(root, "etc/group")); group == "" {
		t.Error("the installation has not created the group boxd")
	}
	config := filepath.Join(root, "etc/boxd/box.toml")
	if err := os.WriteFile(config, []byte("# mine\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	rpm("-U", file)
	if text, err := os.ReadFile(config); err != nil || string(text) != "# mine\n" {
		t.Errorf(`after the upgrade the configuration is %q, %v, want no error and text == "# mine\n"`, text, err)
	}
	if !exists(enabled) || !exists("/usr/lib/boxd/boxkeeper") {
		t.Error("the upgrade has disabled or lost boxd")
	}
	if got := run(t, "chroot", root, "/usr/lib/boxd/boxd", "-version"); !strings.HasPrefix(got, "boxd ") {
		t.Errorf(`the program prints %q, want got starting with "boxd "`, got)
	}
	rpm("-e", "boxd")
	for _, path := range []string{"/usr/lib/boxd", "/usr/bin/boxctl", "/usr/lib/systemd/system/boxd.socket", "/run/boxd", enabled} {
		if exists(path) {
			t.Errorf("after the removal there still is %s, want not there(path)", path)
		}
	}
}
