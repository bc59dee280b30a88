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

// Alive reports whether the process of a pidfd has not ended (pidfd_open(2)). It polls again
// after EINTR: a signal, such as the Go runtime sends to its own threads, says nothing about that
// process.
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
	path       string // where it is in the box at the moment
	options    string // mount options, separated by commas
}

// maxLine bounds a line of mountinfo. By nesting directories a box can make the path in it as
// long as it likes.
const maxLine = 16 << 20

// parse calls each for every line of mountinfo and keeps nothing itself. A malformed line is an
// error: otherwise a missing mount would be taken for one that is gone.
func parse(r io.Reader, each func(entry)) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		// Split at spaces only: the kernel escapes space, tab, newline and backslash but no other
		// white space, which a box can put into names.
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

// unescape undoes the kernel's escapes of space, tab, newline and backslash in a path.
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

// mounts calls each for every mount of the box.
func (b *Box) mounts(each func(entry)) error {
	f, err := os.Open("/proc/" + strconv.Itoa(b.PID) + "/mountinfo")
	if err != nil {
		return b.ended(err)
	}
	defer f.Close()
	if !b.Alive() {
		return unix.ESRCH
	}
	return parse(f, each)
}

// find returns the path of a mount in the box, "" if the box does not have it.
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

// maxExamined bounds how many descriptors and mappings, of all processes, are examined to name the
// users of a mount. A box can have millions, and the time it takes to examine them is not charged
// to it.
const maxExamined = 1 << 16

// users names what keeps a mount busy, at most isolation.MaxMountUsers entries: other mounts on
// it, and for each process of the box the first use that is found.
func (b *Box) users(id uint64) []isolation.MountUser {
	var list []isolation.MountUser
	_ = b.mounts(func(e entry) { // what cannot be found out is left out
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
	budget := maxExamined
	for _, name := range names {
		var st unix.Stat_t
		if _, err := strconv.Atoi(name); err != nil || len(list) >= isolation.MaxMountUsers {
			continue
		}
		if unix.Stat("/proc/"+name+"/ns/pid", &st) != nil || st.Ino != own.Ino || st.Dev != own.Dev {
			continue
		}
		if u, uses := usesOf("/proc/"+name, id, &budget); uses {
			list = append(list, u)
		}
	}
	return list
}

// usesOf looks for the first use that a process makes of a mount, until budget is used up.
func usesOf(proc string, id uint64, budget *int) (isolation.MountUser, bool) {
	for _, how := range []string{"cwd", "root", "exe"} {
		if now, err := mountIDOf(proc + "/" + how); err == nil && now == id {
			return mountUser(proc, how, proc+"/"+how), true
		}
	}
	for _, dir := range []string{"fd", "map_files"} {
		if *budget <= 0 {
			break
		}
		f, err := os.Open(proc + "/" + dir)
		if err != nil {
			continue
		}
		names, _ := f.Readdirnames(*budget)
		f.Close()
		*budget -= len(names)
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

// mountIDOf returns the id of the mount that a link in /proc leads to. Its filesystem is not
// asked (AT_STATX_DONT_SYNC).
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

// text makes a name from the box safe to show.
func text(s string) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	if len(s) > isolation.MaxItem {
		s = strings.ToValidUTF8(s[:isolation.MaxItem], "")
	}
	return s
}
