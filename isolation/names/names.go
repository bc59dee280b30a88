// SPDX-License-Identifier: Apache-2.0

// Package names has what things of a box are called, for its two halves.
package names

import "golang.org/x/sys/unix"

// Dir holds the files of /etc that differ from box to box. The image has links to them.
const Dir = "/run/box"

// File is one of them.
type File struct{ Name, Text string }

// Files are the files that have a box's hostname in them.
func Files(hostname string) [2]File {
	return [2]File{
		{"hostname", hostname + "\n"},
		{"hosts", "127.0.0.1\tlocalhost " + hostname + "\n::1\tlocalhost " + hostname + "\n"},
	}
}

// Rlimit is what a resource is called in errors.
func Rlimit(resource uint32) string {
	switch resource {
	case unix.RLIMIT_CORE:
		return "core"
	case unix.RLIMIT_DATA:
		return "data"
	case unix.RLIMIT_MEMLOCK:
		return "memlock"
	case unix.RLIMIT_NOFILE:
		return "nofile"
	case unix.RLIMIT_NPROC:
		return "nproc"
	case unix.RLIMIT_STACK:
		return "stack"
	}
	return ""
}
