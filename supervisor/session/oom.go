// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// oomVictims returns the names of the processes that the kernel has killed in a cgroup because
// memory was used up, oldest first, as far as its log still has them. Nothing else tells: the
// line comes from mm/oom_kill.c. group is an absolute path below mount, and so is limited, the
// cgroup whose limit the last of them was killed for.
func oomVictims(mount, group string) (names []string, limited string) {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "" // the host does not let us read its log
	}
	defer unix.Close(fd)
	buf := make([]byte, 8<<10) // longer than any record (PRINTKRB_RECORD_MAX)
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EPIPE): // the record was overwritten while it was read: continue with the next one
			continue
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil || n <= 0:
			return names, limited
		}
		if name, memcg := victimOf(buf[:n], strings.TrimPrefix(group, mount)); name != "" {
			names, limited = append(names, name), mount+memcg
		}
	}
}

// victimOf parses one record:
// "6,1234,5678,-;oom-kill:constraint=…,task_memcg=/a/b,task=python3,pid=42,uid=…". memcg is its
// oom_memcg, "" if the host itself was short of memory.
func victimOf(record []byte, group string) (name, memcg string) {
	line, _, _ := bytes.Cut(record, []byte("\n"))
	_, text, ok := bytes.Cut(line, []byte(";oom-kill:"))
	if !ok || group == "" {
		return "", ""
	}
	before, rest, ok := bytes.Cut(text, []byte(",task_memcg="+group+",task="))
	if !ok {
		return "", ""
	}
	// A program may give itself any name of up to 15 bytes, even with commas: the last ",pid=" is
	// the kernel's.
	if i := bytes.LastIndex(rest, []byte(",pid=")); i >= 0 {
		return string(rest[:i]), limitOf(before)
	}
	return "", ""
}

func limitOf(text []byte) string {
	_, memcg, _ := bytes.Cut(text, []byte(",oom_memcg="))
	return string(memcg)
}
