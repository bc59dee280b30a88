// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/md5" //nolint:gosec // what package managers compare their files with
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
)

// packagesEntry stands, in the list of what boxes see of /etc, for the configuration files that packages installed and that are
// unmodified: programs of /usr do not work without them, and every user can read them in the package. A modified one may be a
// secret or reveal which host this is, so boxes see it only if it is listed itself.
const packagesEntry = "@packages"

// Bounds on the configuration files of packages, which are copied.
const (
	maxPackageFile  = 1 << 20
	maxPackageFiles = 8 << 20
	maxDatabase     = 64 << 20
	maxEtcDepth     = 8
)

// notPrograms returns the parts of /etc that concern services and logins of the host, of which
// boxes have none, or that boxd writes itself.
func notPrograms() []string {
	return []string{
		"passwd", "group", "shadow", "gshadow", "subuid", "subgid", "nsswitch.conf", "shells", gitConfig, "hosts", "hostname", "resolv.conf", "mtab", "os-release", "machine-id",
		"boxd", "ssh", "sudoers", "sudoers.d", "sudo.conf", "pam.d", "pam.conf", "security", "login.defs", "securetty", "profile", "profile.d", "environment", "bash.bashrc", "skel",
		"crontab", "anacrontab", "cron.d", "cron.daily", "cron.hourly", "cron.monthly", "cron.weekly", "systemd", "init", "init.d", "default", "rc0.d", "rc1.d", "rc2.d", "rc3.d", "rc4.d", "rc5.d", "rc6.d", "rcS.d",
		"logrotate.d", "logrotate.conf", "rsyslog.d", "rsyslog.conf", "NetworkManager", "network", "netplan", "udev", "modprobe.d", "modules-load.d", "modules", "sysctl.d", "sysctl.conf",
		"apt", "dpkg", "kernel", "initramfs-tools", "grub.d", "apparmor", "apparmor.d", "selinux", "polkit-1", "dbus-1", "ppp", "fstab", "crypttab", "issue", "issue.net", "motd", "update-motd.d",
	}
}

// unchanged returns the paths of files and symbolic links of /etc that packages have installed
// and that have not changed since.
func (b *rootBuilder) unchanged() ([]string, error) {
	known, err := b.configuration()
	if err != nil {
		return nil, err
	}
	skipped := map[string]bool{}
	for _, name := range notPrograms() {
		skipped[name] = true
	}
	found := map[string]bool{}
	room := int64(maxPackageFiles)
	for name, sum := range known {
		top, _, _ := strings.Cut(strings.TrimPrefix(name, "etc/"), "/")
		if skipped[top] {
			continue
		}
		same, size, err := b.isUnchanged(name, sum)
		if err != nil {
			return nil, err
		}
		if same && size <= room {
			room -= size
			found[name] = true
		}
	}
	links := map[string]string{}
	if err := b.linksIn("etc", skipped, links, 0); err != nil {
		return nil, err
	}
	for name, target := range links { // as with programs that are configured by a link to one of their own files
		if at := resolved(name, target); found[at] || strings.HasPrefix(at, "usr/") {
			found[name] = true
		}
	}
	list := make([]string, 0, len(found))
	for name := range found {
		list = append(list, name)
	}
	return list, nil
}

// resolved returns the path below / that a symbolic link contains, without resolving further
// links.
func resolved(name, target string) string {
	if !strings.HasPrefix(target, "/") {
		target = path.Join("/", path.Dir(name), target)
	}
	return path.Clean(target)[1:]
}

// isUnchanged reports whether a file has this MD5 or SHA-256 sum and is world-readable.
func (b *rootBuilder) isUnchanged(name, sum string) (same bool, size int64, err error) {
	fd, err := linux.OpenBeneath(b.host, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENXIO) {
			err = nil
		}
		return false, 0, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Mode()&0o004 == 0 || info.Size() > maxPackageFile {
		return false, 0, err
	}
	h := md5.New() //nolint:gosec // as above
	if len(sum) == 2*sha256.Size {
		h = sha256.New()
	}
	if _, err := io.Copy(h, io.LimitReader(f, maxPackageFile)); err != nil {
		return false, 0, fmt.Errorf("read /%s: %w", name, err)
	}
	return hex.EncodeToString(h.Sum(nil)) == sum, info.Size(), nil
}

// configuration returns the files of /etc that belong to packages, with the sums they were
// installed with, according to dpkg(1), ucf(1), pacman(8) and rpm(8). It is empty where there is no such
// package manager.
func (b *rootBuilder) configuration() (map[string]string, error) {
	known := map[string]string{}
	note := func(name, sum string) {
		if name, ok := strings.CutPrefix(name, "/"); ok && strings.HasPrefix(name, "etc/") && path.Clean(name) == name && (len(sum) == 2*md5.Size || len(sum) == 2*sha256.Size) {
			known[name] = sum
		}
	}
	status, err := b.database("var/lib/dpkg/status")
	if err != nil {
		return nil, err
	}
	installed, conffiles := false, false
	for line := range bytes.Lines(status) {
		text := strings.TrimSuffix(string(line), "\n")
		switch {
		case text == "":
			installed, conffiles = false, false
		case strings.HasPrefix(text, "Status: "):
			installed = strings.HasSuffix(text, " installed")
		case !strings.HasPrefix(text, " "):
			conffiles = text == "Conffiles:"
		case conffiles && installed:
			if fields := strings.Fields(text); len(fields) == 2 { // a third field says that the file is obsolete, or to be removed
				note(fields[0], fields[1])
			}
		}
	}
	hashes, err := b.database("var/lib/ucf/hashfile")
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(hashes) {
		if fields := strings.Fields(string(line)); len(fields) == 2 {
			note(fields[1], fields[0])
		}
	}
	packages, err := b.entries("var/lib/pacman/local")
	if err != nil {
		return nil, err
	}
	for _, name := range packages {
		files, err := b.database("var/lib/pacman/local/" + name + "/files")
		if err != nil {
			return nil, err
		}
		_, backup, _ := strings.Cut(string(files), "%BACKUP%\n")
		for line := range strings.Lines(backup) {
			file, sum, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
			if !ok {
				break
			}
			note("/"+file, sum)
		}
	}
	for line := range bytes.Lines(b.rpmFiles()) { // name, size, time, sum, mode, owner, group, three numbers and what a link leads to
		if fields := strings.Fields(string(line)); len(fields) == 11 {
			note(fields[0], fields[3])
		}
	}
	return known, nil
}

// rpmTimeout bounds the reading of rpm's database.
const rpmTimeout = 30 * time.Second

// rpmDatabases are the files of rpm's database, in each of its forms and places.
func rpmDatabases() []string {
	return []string{"usr/lib/sysimage/rpm/rpmdb.sqlite", "usr/lib/sysimage/rpm/Packages.db", "var/lib/rpm/rpmdb.sqlite", "var/lib/rpm/Packages.db", "var/lib/rpm/Packages"}
}

// rpmFiles returns what the host's rpm(8) reports of all configuration files. Only rpm itself can read the format of its
// database; where it cannot, no file counts as a package's.
func (b *rootBuilder) rpmFiles() []byte {
	i := slices.IndexFunc(rpmDatabases(), func(name string) bool {
		var st unix.Stat_t
		return unix.Fstatat(b.host, name, &st, 0) == nil
	})
	root, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", b.host))
	if i < 0 || err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), rpmTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/usr/bin/rpm", "--dbpath", path.Join(root, path.Dir(rpmDatabases()[i])), "-qa", "--configfiles", "--dump")
	cmd.Env, cmd.Dir = []string{"LC_ALL=C"}, "/"
	if os.Geteuid() == 0 { // it only needs to read world-readable files
		const nobody = 65534
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	out, err := cmd.Output()
	if err != nil || len(out) > maxDatabase {
		return nil
	}
	return out
}

// database reads a file of a package manager; a missing file counts as empty.
func (b *rootBuilder) database(name string) ([]byte, error) {
	fd, err := linux.OpenBeneath(b.host, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("host's /%s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxDatabase))
	if err != nil {
		return nil, fmt.Errorf("read /%s: %w", name, err)
	}
	return data, nil
}

// linksIn adds the symbolic links in a directory and below it.
func (b *rootBuilder) linksIn(dir string, skipped map[string]bool, links map[string]string, depth int) error {
	fd, err := unix.Openat(b.host, dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil // it has just been removed, or may not be read
	}
	d := os.NewFile(uintptr(fd), dir)
	defer d.Close()
	entries, err := d.ReadDir(-1)
	if err != nil {
		return fmt.Errorf("host's /%s: %w", dir, err)
	}
	for _, e := range entries {
		name := dir + "/" + e.Name()
		switch {
		case depth == 0 && skipped[e.Name()]:
		case e.IsDir() && depth < maxEtcDepth:
			if err := b.linksIn(name, skipped, links, depth+1); err != nil {
				return err
			}
		case e.Type()&os.ModeSymlink != 0:
			buf := make([]byte, unix.PathMax)
			if n, err := unix.Readlinkat(int(d.Fd()), e.Name(), buf); err == nil {
				links[name] = string(buf[:n])
			}
		}
	}
	return nil
}

// missingLinks lists symbolic links of the host's /usr that lead to a part of /etc that boxes do
// not have; etc is the list of what they have.
func missingLinks(etc []string) ([]string, error) {
	host, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(host)
	b := &rootBuilder{root: -1, host: host}
	shown, err := b.listed(etc)
	if err != nil {
		return nil, err
	}
	links := map[string]string{}
	if err := b.linksIn("usr", nil, links, -1<<10); err != nil {
		return nil, err
	}
	var missing []string
	for name, target := range links {
		at := resolved(name, target)
		var st unix.Stat_t
		if !strings.HasPrefix(at, "etc/") || unix.Fstatat(host, at, &st, 0) != nil {
			continue
		}
		if !slices.ContainsFunc(shown, func(s string) bool { return at == s || strings.HasPrefix(at, s+"/") || strings.HasPrefix(s, at+"/") }) {
			missing = append(missing, "/"+name)
		}
	}
	slices.Sort(missing)
	return missing, nil
}
