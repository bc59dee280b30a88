// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
)

// setRlimits sets the limits that every program inherits, or the host's hard limit where that is
// lower. syscall.Setrlimit and not unix.Prlimit: the runtime raised its own soft RLIMIT_NOFILE
// and would otherwise give children the old one back.
func (b *box) setRlimits() (string, error) {
	for _, r := range b.setup.Rlimits {
		var host syscall.Rlimit
		if err := syscall.Getrlimit(int(r.Resource), &host); err != nil {
			return isolation.RlimitName(r.Resource), err
		}
		lim := syscall.Rlimit{Cur: min(r.Soft, host.Max), Max: min(r.Hard, host.Max)}
		if err := syscall.Setrlimit(int(r.Resource), &lim); err != nil {
			return isolation.RlimitName(r.Resource), err
		}
	}
	return "", nil
}

func (b *box) setHostname() (string, error) {
	return b.setup.Hostname, unix.Sethostname([]byte(b.setup.Hostname))
}

// raiseLoopback sets lo up, unless the box shares the network of the host. The keeper makes all
// other interfaces.
func (b *box) raiseLoopback() (item string, err error) {
	b.shared, item, err = isolation.SetUpLoopback()
	return item, err
}

// writeFiles writes the files of /etc that differ from box to box; the image has symbolic links
// to them. Their directory belongs to root, so a program cannot change what the next one reads.
func (b *box) writeFiles() (string, error) {
	if err := unix.Mkdir(isolation.RunDir, 0o755); err != nil {
		return isolation.RunDir, err
	}
	return writeAll(append(isolation.HostnameFiles(b.setup.Hostname), isolation.BoxFile{Name: "resolv.conf", Text: b.setup.Resolv}))
}

// showUser replaces the image's passwd and group with ones for the name and home directory of the box user, if these differ. If
// the image has no such file, there are no users to look up. In a root that can be written to they are changed, as far as there is
// room, so that root of the box can replace them: to rename another file to their place is what a mount would forbid.
func (b *box) showUser() (string, error) {
	if b.setup.User == (isolation.User{}) {
		return "", nil
	}
	var text, paths [2]string
	for i, name := range []string{"etc/passwd", "etc/group"} {
		var err error
		if text[i], err = b.readUsers(name); errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EINVAL) {
			continue
		} else if err != nil {
			return "/" + name, err
		}
		paths[i] = name
	}
	files := b.setup.User.UserFiles(text[0], text[1])
	if b.writable {
		b.recordUsers()
	}
	for i, f := range files {
		if paths[i] == "" || b.writable && (f.Text == text[i] || b.overwrite(paths[i], f.Text) == nil) {
			continue
		}
		f.Name = "shown-" + f.Name
		if item, err := writeAll([]isolation.BoxFile{f}); err != nil {
			return item, err
		}
		if err := b.coverFile(paths[i], isolation.RunDir+"/"+f.Name); err != nil {
			return "/" + paths[i], err
		}
	}
	return "", nil
}

// recordUsers writes down what PID 1 makes of the image's passwd and group: to boxfiles they are what the image has. What cannot be
// written down counts as changed by programs.
func (b *box) recordUsers() {
	var text [2]string
	var errs [2]error
	for i, name := range []string{"/etc/passwd", "/etc/group"} {
		text[i], errs[i] = b.readUsers(isolation.RootImage[1:] + name)
	}
	for i, f := range b.setup.User.UserFiles(text[0], text[1]) {
		if errs[i] == nil {
			_, _ = writeAll([]isolation.BoxFile{f})
		}
	}
}

// overwrite gives a file of a root that can be written to another text, as the box user. One that this may not write to, such as one of
// root, is replaced.
func (b *box) overwrite(name, text string) error {
	defer asBoxUser()()
	fd, err := linux.OpenBeneath(b.root, name, unix.O_WRONLY|unix.O_NONBLOCK)
	if errors.Is(err, unix.EACCES) {
		return b.replace(name, text)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return writeText(fd, text)
}

// replace puts another file in the place of one, whose directory the box user may write to.
func (b *box) replace(name, text string) error {
	dir, err := linux.OpenBeneath(b.root, path.Dir(name), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	name = path.Base(name)
	tmpName := ".boxd-" + name
	_ = unix.Unlinkat(dir, tmpName, 0) // of a start that did not come so far
	fd, err := unix.Openat(dir, tmpName, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err = writeText(fd, text); err == nil {
		err = unix.Renameat(dir, tmpName, dir, name)
	}
	if err != nil {
		_ = unix.Unlinkat(dir, tmpName, 0)
	}
	return err
}

// writeText gives a file a text.
func writeText(fd int, text string) error {
	n, err := unix.Pwrite(fd, []byte(text), 0)
	if err == nil && n < len(text) {
		err = unix.ENOSPC
	}
	if err != nil {
		return err
	}
	return unix.Ftruncate(fd, int64(len(text)))
}

// readUsers reads passwd or group of the image, which is untrusted. EINVAL: not a regular file of moderate size, so of no use for
// looking up users.
func (b *box) readUsers(name string) (string, error) {
	fd, err := linux.OpenBeneath(b.root, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if errors.Is(err, unix.ENXIO) { // a socket
		err = unix.EINVAL
	}
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > isolation.MaxUsers {
		return "", unix.EINVAL
	}
	text := make([]byte, st.Size)
	n, err := unix.Pread(fd, text, 0)
	if err != nil {
		return "", err
	}
	return string(text[:n]), nil
}

// coverFile mounts a file over another one, read-only.
func (b *box) coverFile(name, source string) error {
	target, err := linux.OpenBeneath(b.root, name, unix.O_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	tree, err := linux.CloneMount(unix.AT_FDCWD, source, false)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC}
	if err := linux.RestrictMount(tree, &attr); err != nil {
		return err
	}
	return linux.AttachMount(tree, target, "")
}

// showLimits writes the limits of the box into the files where programs look for those of the
// host. They are in the same directory as the files of /etc, so that the keeper can rewrite them
// when limits change.
func (b *box) showLimits() (string, error) {
	for _, dir := range isolation.ViewDirs() {
		if err := unix.Mkdir(isolation.RunDir+"/"+dir, 0o755); err != nil {
			return dir, err
		}
	}
	if item, err := writeAll(isolation.ViewFiles(&b.setup.View)); err != nil {
		return item, err
	}
	if err := b.coverProc("meminfo", unix.AT_FDCWD, isolation.RunDir+"/"+isolation.ViewMemInfo, unix.MOUNT_ATTR_RDONLY); err != nil {
		return isolation.ViewMemInfo, err
	}
	tree, err := linux.CloneMount(unix.AT_FDCWD, isolation.RunDir+"/"+isolation.ViewSys, false)
	if err != nil {
		return isolation.ViewSys, err
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC}
	if err := linux.RestrictMount(tree, &attr); err != nil {
		return isolation.ViewSys, err
	}
	if err := linux.AttachMount(tree, unix.AT_FDCWD, "/sys"); err != nil {
		return isolation.ViewSys, err
	}
	return b.showGroups()
}

// showGroups mounts the cgroups of the box, read-only, over the files that stand for them where there are none. Of its root the
// files that say the limits stay those: what the kernel has there is the cap on all of the box, which is higher.
func (b *box) showGroups() (string, error) {
	if b.group < 0 {
		return "", nil
	}
	groups, err := linux.NewMount("cgroup2", unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return "cgroup2", err
	}
	defer unix.Close(groups)
	if err := linux.AttachMount(groups, unix.AT_FDCWD, cgroup.Mount); err != nil {
		return cgroup.Mount, err
	}
	for _, f := range isolation.ViewFiles(&b.setup.View) {
		name, ok := strings.CutPrefix(f.Name, isolation.ViewCgroup+"/")
		if !ok || name == "cgroup.controllers" {
			continue
		}
		if err := b.coverFile(cgroup.Mount[1:]+"/"+name, isolation.RunDir+"/"+f.Name); err != nil && !errors.Is(err, unix.ENOENT) {
			return name, err
		}
	}
	return "", nil
}

func writeAll(files []isolation.BoxFile) (string, error) {
	for _, f := range files {
		fd, err := unix.Open(isolation.RunDir+"/"+f.Name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return f.Name, err
		}
		_, err = unix.Write(fd, []byte(f.Text))
		unix.Close(fd)
		if err != nil {
			return f.Name, err
		}
	}
	return "", nil
}
