// SPDX-License-Identifier: Apache-2.0

package inside

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/mountfd"
	"github.com/boxd-dev/boxd/isolation/names"
	"github.com/boxd-dev/boxd/isolation/shared"
)

// setRlimits sets the limits every program inherits, or what the host allows if that is less.
// syscall.Setrlimit and not unix.Prlimit: the runtime raised its own soft RLIMIT_NOFILE and would
// otherwise give children the old one back.
func (b *box) setRlimits() (string, error) {
	for _, r := range b.setup.Rlimits {
		var host syscall.Rlimit
		if err := syscall.Getrlimit(int(r.Resource), &host); err != nil {
			return names.Rlimit(r.Resource), err
		}
		lim := syscall.Rlimit{Cur: min(r.Soft, host.Max), Max: min(r.Hard, host.Max)}
		if err := syscall.Setrlimit(int(r.Resource), &lim); err != nil {
			return names.Rlimit(r.Resource), err
		}
	}
	return "", nil
}

func (b *box) setHostname() (string, error) {
	return b.setup.Hostname, unix.Sethostname([]byte(b.setup.Hostname))
}

// raiseLoopback sets lo up, unless the box is in the network of the host. What else there may be is the keeper's to make.
func (b *box) raiseLoopback() (item string, err error) {
	b.shared, item, err = shared.Loopback()
	return item, err
}

// writeFiles writes the files of /etc that differ from box to box. The image has links to them.
// Their directory is root's, so a program cannot change what the next one reads.
func (b *box) writeFiles() (string, error) {
	if err := unix.Mkdir(names.Dir, 0o755); err != nil {
		return names.Dir, err
	}
	return writeAll(append(names.Files(b.setup.Hostname), names.File{Name: "resolv.conf", Text: b.setup.Resolv}))
}

// showLimits shows programs the limits of the box where they look for the host's. The files are in the same directory, so
// that the keeper can write them again when limits change.
func (b *box) showLimits() (string, error) {
	for _, dir := range names.ViewDirs() {
		if err := unix.Mkdir(names.Dir+"/"+dir, 0o755); err != nil {
			return dir, err
		}
	}
	if item, err := writeAll(names.ViewFiles(&b.setup.View)); err != nil {
		return item, err
	}
	if err := b.cover("meminfo", unix.AT_FDCWD, names.Dir+"/"+names.MemInfo, unix.MOUNT_ATTR_RDONLY); err != nil {
		return names.MemInfo, err
	}
	tree, err := mountfd.Clone(unix.AT_FDCWD, names.Dir+"/"+names.Sys, false)
	if err != nil {
		return names.Sys, err
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC}
	if err := mountfd.Restrict(tree, &attr); err != nil {
		return names.Sys, err
	}
	return names.Sys, mountfd.Attach(tree, unix.AT_FDCWD, "/sys")
}

func writeAll(files []names.File) (string, error) {
	for _, f := range files {
		fd, err := unix.Open(names.Dir+"/"+f.Name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
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
