// SPDX-License-Identifier: Apache-2.0

// Files and symbolic links that every box has in /etc and /run/box.

package isolation

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// RunDir holds the files of /etc that differ from box to box. The image has symbolic links to
// them.
const RunDir = "/run/box"

// BoxFile is one of them.
type BoxFile struct{ Name, Text string }

// HostnameFiles returns the files that contain a box's hostname.
func HostnameFiles(hostname string) []BoxFile {
	return []BoxFile{
		{"hostname", hostname + "\n"},
		{"hosts", "127.0.0.1\tlocalhost " + hostname + "\n::1\tlocalhost " + hostname + "\n"},
	}
}

// MaxUsers is the largest /etc/passwd or /etc/group that is replaced for a box with another user, in bytes.
const MaxUsers = 1 << 20

// UserFiles returns passwd and group for a box whose user has another name or home than in the image, based on the image's: entries
// with other ids and names stay.
func (u *User) UserFiles(passwd, group string) []BoxFile {
	id := strconv.Itoa(BoxUID)
	return []BoxFile{
		{"passwd", withEntry(passwd, u.Name, u.Name+":x:"+id+":"+strconv.Itoa(BoxGID)+":"+u.Name+":"+u.Home+":"+shellOf(passwd, id))},
		{"group", withEntry(group, u.Name, u.Name+":x:"+strconv.Itoa(BoxGID)+":root")}, // as boxinit gives it to programs that run as root
	}
}

// shellOf returns the shell that a text of passwd(5) gives a user, or else /bin/sh.
func shellOf(passwd, id string) string {
	for line := range strings.Lines(passwd) {
		if part := strings.Split(strings.TrimSuffix(line, "\n"), ":"); len(part) == 7 && part[2] == id && part[6] != "" {
			return part[6]
		}
	}
	return "/bin/sh"
}

// withEntry returns a text of passwd(5) or group(5) with one entry in the place of those of its
// name and of the box's id. If that is the only one of them already, perhaps with more members of the group, the text stays as it is.
func withEntry(text, name, entry string) string {
	var b strings.Builder
	found, same := 0, false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		part := strings.Split(line, ":")
		if part[0] == name || len(part) > 2 && part[2] == strconv.Itoa(BoxUID) {
			found++
			same = line == entry || strings.HasPrefix(line, entry+",")
			continue
		}
		b.WriteString(line + "\n")
	}
	if same && found == 1 {
		return text
	}
	return b.String() + entry + "\n"
}

// RootDirs returns the directories that every box has at the top of its tree, apart from those
// where a session may mount.
func RootDirs() []string { return []string{"proc", "sys", "dev", "etc", "var", "run", "home"} }

// HostDirs returns the directories of the host that the image "host" shows whole. On most hosts
// all but the first are symbolic links into that one.
func HostDirs() []string {
	return []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}
}

// RootLinks returns the symbolic links that every box has, with their targets. The files of /etc
// that differ from box to box are written by PID 1.
func RootLinks() map[string]string {
	return map[string]string{
		"etc/hosts": "../run/box/hosts", "etc/hostname": "../run/box/hostname", "etc/resolv.conf": "../run/box/resolv.conf", "etc/mtab": "../proc/self/mounts",
		"var/tmp": "../tmp", "var/run": "../run",
	}
}

// RlimitName returns what a resource is called in errors.
func RlimitName(resource uint32) string {
	switch resource {
	case unix.RLIMIT_CORE:
		return "core"
	case unix.RLIMIT_DATA:
		return "data"
	case unix.RLIMIT_MEMLOCK:
		return "memlock"
	case unix.RLIMIT_MSGQUEUE:
		return "msgqueue"
	case unix.RLIMIT_NICE:
		return "nice"
	case unix.RLIMIT_NOFILE:
		return "nofile"
	case unix.RLIMIT_NPROC:
		return "nproc"
	case unix.RLIMIT_RTPRIO:
		return "rtprio"
	case unix.RLIMIT_SIGPENDING:
		return "sigpending"
	case unix.RLIMIT_STACK:
		return "stack"
	}
	return ""
}

// ProgramsID distinguishes these versions of the programs from later ones at the same paths:
// after an update boxd wants another keeper.
func ProgramsID(keeper, boxInit, boxFiles, boxNet *unix.Stat_t) string {
	return stamp(keeper) + " " + stamp(boxInit) + " " + stamp(boxFiles) + " " + stamp(boxNet)
}

func stamp(st *unix.Stat_t) string {
	var text []byte
	for _, n := range []int64{int64(st.Dev), int64(st.Ino), st.Size, st.Mtim.Nano()} {
		text = strconv.AppendInt(append(text, '.'), n, 16)
	}
	return string(text[1:])
}
