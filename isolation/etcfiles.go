// SPDX-License-Identifier: Apache-2.0

// Files and symbolic links that every box has in /etc and /run/box.

package isolation

import (
	"strconv"

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
	case unix.RLIMIT_NOFILE:
		return "nofile"
	case unix.RLIMIT_NPROC:
		return "nproc"
	case unix.RLIMIT_SIGPENDING:
		return "sigpending"
	case unix.RLIMIT_STACK:
		return "stack"
	}
	return ""
}

// ProgramsID distinguishes these versions of the programs from later ones at the same paths:
// after an update boxd wants another keeper.
func ProgramsID(keeper, boxInit, boxFiles *unix.Stat_t) string {
	return stamp(keeper) + " " + stamp(boxInit) + " " + stamp(boxFiles)
}

func stamp(st *unix.Stat_t) string {
	var text []byte
	for _, n := range []int64{int64(st.Dev), int64(st.Ino), st.Size, st.Mtim.Nano()} {
		text = strconv.AppendInt(append(text, '.'), n, 16)
	}
	return string(text[1:])
}
