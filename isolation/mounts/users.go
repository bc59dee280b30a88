// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// Alive reports whether a process has not ended, by a descriptor of it (pidfd_open(2)). A signal to this process may come
// between, as the runtime sends to itself, and says nothing of the other one.
func Alive(pidfd int) bool {
	poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(poll, 0)
		if !errors.Is(err, unix.EINTR) {
			return n == 0 && err == nil
		}
	}
}

// entry is a line of mountinfo (proc_pid_mountinfo(5)).
type entry struct {
	id, parent uint64
	path       string // in the box, where it is at the moment
	options    string // of the mount, with commas
}

// maxLine bounds a line of mountinfo. The path in it is as long as a box makes it, by directories in directories.
const maxLine = 16 << 20

// parse reads mountinfo, of which it keeps nothing. A line that is not of its form is an error: what is missing
// would be taken for gone.
func parse(r io.Reader, each func(entry)) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		// By spaces alone: the kernel escapes space, tab and newline and no other white space, and names that a
		// box gives may have it.
		f := strings.SplitN(lines.Text(), " ", 7)
		if len(f) < 6 {
			return unix.EPROTO
		}
		id, err := strconv.ParseUint(f[0], 10, 64)
		if err != nil {
			return unix.EPROTO
		}
		parent, err := strconv.ParseUint(f[1], 10, 64)
		if err != nil {
			return unix.EPROTO
		}
		each(entry{id, parent, unescape(f[4]), f[5]})
	}
	return lines.Err()
}

// unescape undoes what the kernel does to space, tab, newline and backslash in a path.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// mounts calls each with those of the box.
func (b *Box) mounts(each func(entry)) error {
	f, err := os.Open("/proc/" + strconv.Itoa(b.PID) + "/mountinfo")
	if err != nil {
		return b.gone(err)
	}
	defer f.Close()
	if !b.Alive() {
		return unix.ESRCH
	}
	return parse(f, each)
}

// find returns where a mount is in the box, "" if it is not there.
func (b *Box) find(id uint64) (at string, err error) {
	err = b.mounts(func(e entry) {
		if e.id == id && strings.HasPrefix(e.path, "/") && e.path != "/" {
			at = e.path
		}
	})
	if err != nil {
		return "", err
	}
	return at, nil
}

// maxLooks is how many descriptors and maps of all processes are looked at to name who uses a mount. A box can have
// millions, and the time that takes is not its own.
const maxLooks = 1 << 16

// users names those who keep a mount from being removed, at most isolation.MaxMountUsers: other mounts on it,
// and of each process of the box the first thing of it that it has.
func (b *Box) users(id uint64) []isolation.MountUser {
	var list []isolation.MountUser
	_ = b.mounts(func(e entry) { // what cannot be found out is not said
		if e.parent == id && len(list) < isolation.MaxMountUsers {
			list = append(list, isolation.MountUser{How: "mount", Path: text(e.path)})
		}
	})
	var own unix.Stat_t
	if unix.Stat("/proc/"+strconv.Itoa(b.PID)+"/ns/pid", &own) != nil || !b.Alive() {
		return list
	}
	dir, err := os.Open("/proc")
	if err != nil {
		return list
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	looks := maxLooks
	for _, name := range names {
		var st unix.Stat_t
		if _, err := strconv.Atoi(name); err != nil || len(list) >= isolation.MaxMountUsers {
			continue
		}
		if unix.Stat("/proc/"+name+"/ns/pid", &st) != nil || st.Ino != own.Ino || st.Dev != own.Dev {
			continue
		}
		if u, uses := usesOf("/proc/"+name, id, &looks); uses {
			list = append(list, u)
		}
	}
	return list
}

// usesOf looks for the first thing of a mount that a process has, as long as there are looks left.
func usesOf(proc string, id uint64, looks *int) (isolation.MountUser, bool) {
	for _, how := range []string{"cwd", "root", "exe"} {
		if now, err := mountIDOf(proc + "/" + how); err == nil && now == id {
			return mountUser(proc, how, proc+"/"+how), true
		}
	}
	for _, dir := range []string{"fd", "map_files"} {
		if *looks <= 0 {
			break
		}
		f, err := os.Open(proc + "/" + dir)
		if err != nil {
			continue
		}
		names, _ := f.Readdirnames(*looks)
		f.Close()
		*looks -= len(names)
		for _, name := range names {
			link := proc + "/" + dir + "/" + name
			if now, err := mountIDOf(link); err != nil || now != id {
				continue
			}
			if dir == "map_files" {
				name = "map"
			}
			return mountUser(proc, name, link), true
		}
	}
	return isolation.MountUser{}, false
}

// mountIDOf is that of what a link of /proc leads to. Nothing is asked of its filesystem (AT_STATX_DONT_SYNC).
func mountIDOf(link string) (uint64, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID, &st)
	return st.Mnt_id, err
}

func mountUser(proc, how, link string) isolation.MountUser {
	u := isolation.MountUser{How: how}
	if to, err := os.Readlink(link); err == nil {
		u.Path = text(to)
	}
	if name, err := os.ReadFile(proc + "/comm"); err == nil {
		u.Program = text(string(bytes.TrimSuffix(name, []byte("\n"))))
	}
	status, _ := os.ReadFile(proc + "/status")
	for line := range strings.SplitSeq(string(status), "\n") {
		if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			if f := strings.Fields(ids); len(f) > 0 {
				n, _ := strconv.ParseUint(f[len(f)-1], 10, 32)
				u.PID = uint32(n)
			}
		}
	}
	return u
}

// text makes something of the box one that can be shown.
func text(s string) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	if len(s) > isolation.MaxItem {
		s = strings.ToValidUTF8(s[:isolation.MaxItem], "")
	}
	return s
}
