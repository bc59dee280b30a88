// SPDX-License-Identifier: Apache-2.0

// Checks of what boxes need from a host, for boxctl doctor.

package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation"
)

// checkHost checks this host for boxes that use count id ranges from base on. Whether a box
// really starts is for boxd to try.
func checkHost(base, count uint32) []isolation.Check {
	checks := []isolation.Check{
		checkKernel(), checkUserNamespaces(), checkCapabilities(), checkIDs(base, count),
	}
	// A kernel without huge pages has no such file.
	setting, _ := os.ReadFile("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
	if c, bad := checkHugePages(string(setting)); bad {
		checks = append(checks, c)
	}
	return checks
}

// checkHugePages checks whether shared memory, which holds output, may use huge pages: where the kernel cannot split one, it
// frees a part of it by writing zeros there, which readers cannot tell from output (transhuge.rst of the kernel:
// "shmem_enabled").
func checkHugePages(setting string) (c isolation.Check, bad bool) {
	_, rest, _ := strings.Cut(setting, "[")
	chosen, _, _ := strings.Cut(rest, "]")
	switch chosen {
	case "always", "within_size", "force":
		return warn("huge pages", "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
			"transparent huge pages are on for shared memory (%s): slow readers can get zeros in place of old output", chosen), true
	}
	return c, false
}

// checkFileLocks says how the number of file locks of a box is bounded.
func checkFileLocks(limit int) isolation.Check {
	const name = "file locks"
	_, known := hostLocks()
	effective, err := effectiveCapabilities()
	switch {
	case limit == 0:
		return warn(name, "set limits.file_locks in box.toml", "a box can fill the host's memory with file locks: limits.file_locks is 0")
	case err == nil && effective&(1<<unix.CAP_SYS_PTRACE) == 0: // needed to see descriptors of other users
		return warn(name, "give the unit of boxkeeper CAP_SYS_PTRACE", "a box can fill the host's memory with file locks: boxkeeper cannot count them without CAP_SYS_PTRACE")
	case !known:
		return ok(name, "a box with more than %d is ended; the kernel does not report their number (CONFIG_SLUB_DEBUG), so those of boxes are always counted", limit)
	}
	return ok(name, "a box with more than %d is ended", limit)
}

// checkStore warns if the store of workspaces has another filesystem than the one configured for a new store; bad is false if it
// does not. kind is "" if there is no store.
func checkStore(kind, configured string) (c isolation.Check, bad bool) {
	if kind == "" || kind == configured {
		return c, false
	}
	return warn("workspace store", "remove all sessions and named workspaces, stop boxd and boxd-keeper.service, and remove store.img in the state directory: a new one is made",
		"it was created as %s; workspaces.store_filesystem is %s", kind, configured), true
}

// checkLinks reports symbolic links of the host's /usr that lead to a part of /etc that boxes do
// not have.
func checkLinks(missing []string, err error) isolation.Check {
	const name, limit = "/etc links", 8
	switch {
	case err != nil:
		return warn(name, "", "%v", err)
	case len(missing) == 0:
		return ok(name, "boxes have every /etc file that /usr links to")
	}
	shown := strings.Join(missing[:min(limit, len(missing))], ", ")
	if len(missing) > limit {
		shown += ", …"
	}
	c := ok(name, "%d links of /usr are broken in boxes: %s", len(missing), shown)
	c.Hint = "add the files that programs need to image.etc in box.toml"
	return c
}

func ok(name, format string, args ...any) isolation.Check {
	return isolation.Check{Name: name, Level: isolation.CheckOK, Detail: fmt.Sprintf(format, args...)}
}

func warn(name, hint, format string, args ...any) isolation.Check {
	return isolation.Check{Name: name, Level: isolation.CheckWarn, Detail: fmt.Sprintf(format, args...), Hint: hint}
}

func fail(name, hint, format string, args ...any) isolation.Check {
	return isolation.Check{Name: name, Level: isolation.CheckFail, Detail: fmt.Sprintf(format, args...), Hint: hint}
}

// Kernel versions: idmapped mounts and recursive mount_setattr need 5.12, cgroup.kill 5.14; 6.1
// is the oldest that boxd is tested on.
const (
	kernelNeeded = 5<<16 | 14
	kernelTested = 6<<16 | 1
)

func checkKernel() isolation.Check {
	const name = "kernel"
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fail(name, "", "uname: %v", err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return warn(name, "", "unknown version %q", release)
	}
	switch v := major<<16 | minor; {
	case v < kernelNeeded:
		return fail(name, "upgrade to Linux 6.1 or later", "Linux %s is too old: boxes need idmapped mounts and cgroup.kill (5.14)", release)
	case v < kernelTested:
		return warn(name, "upgrade to Linux 6.1 or later", "Linux %s is untested (6.1 or later is tested); a writable root needs 5.19", release)
	}
	return ok(name, "Linux %s", release)
}

func checkUserNamespaces() isolation.Check {
	const name, file = "user namespaces", "/proc/sys/user/max_user_namespaces"
	data, err := os.ReadFile(file)
	if err != nil {
		return fail(name, "use a kernel with CONFIG_USER_NS", "%v", err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || n == 0 {
		return fail(name, "sysctl user.max_user_namespaces=10000 (boxd creates them as root)", "disabled: user.max_user_namespaces is %s", strings.TrimSpace(string(data)))
	}
	return ok(name, "up to %d", n)
}

// needed returns the capabilities that the keeper uses, by their numbers in capability.h.
func needed() map[string]int {
	return map[string]int{
		"CHOWN": unix.CAP_CHOWN, "DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "FOWNER": unix.CAP_FOWNER, "KILL": unix.CAP_KILL,
		"SETGID": unix.CAP_SETGID, "SETUID": unix.CAP_SETUID, "SYS_ADMIN": unix.CAP_SYS_ADMIN,
	}
}

// effectiveCapabilities returns those of this process, a bit for each.
func effectiveCapabilities() (uint64, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&header, &data[0])
	return uint64(data[0].Effective) | uint64(data[1].Effective)<<32, err
}

func checkCapabilities() isolation.Check {
	const name = "capabilities"
	effective, err := effectiveCapabilities()
	if err != nil {
		return fail(name, "", "capget: %v", err)
	}
	var missing []string
	for c, n := range needed() {
		if effective&(1<<n) == 0 {
			missing = append(missing, "CAP_"+c)
		}
	}
	if len(missing) > 0 {
		return fail(name, "run boxkeeper as root, or give its unit these capabilities", "missing %s", strings.Join(missing, ", "))
	}
	return ok(name, "boxkeeper has all it needs")
}

// checkIDs looks for users and subordinate id ranges of the host that overlap the ids of boxes.
func checkIDs(base, count uint32) isolation.Check {
	const name = "id ranges"
	first := uint64(base)
	end := first + uint64(count)*isolation.IDRange
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		data, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return warn(name, "", "%v", err)
		}
		for line := range strings.Lines(string(data)) {
			who, start, count, err := subordinate(line)
			if err == nil && start < end && start+count > first {
				return fail(name, "set ids.base in box.toml to a free multiple of 65536", "%s assigns ids %d-%d to %s, which overlap with those of boxes", file, start, start+count-1, who)
			}
		}
	}
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return warn(name, "", "%v", err)
	}
	for line := range strings.Lines(string(passwd)) {
		fields := strings.SplitN(line, ":", 4)
		if len(fields) < 4 {
			continue
		}
		if id, err := strconv.ParseUint(fields[2], 10, 32); err == nil && id >= first && id < end {
			return fail(name, "set ids.base in box.toml to a free multiple of 65536", "uid %[2]d of user %[1]s is in the range of boxes", fields[0], id)
		}
	}
	return ok(name, "%d-%d, enough for %d boxes", first, end-1, count)
}

// subordinate parses a line of subuid(5).
func subordinate(line string) (who string, start, count uint64, err error) {
	fields := strings.Split(strings.TrimSpace(line), ":")
	if len(fields) != 3 {
		return "", 0, 0, errors.New("not a subordinate id line")
	}
	start, err = strconv.ParseUint(fields[1], 10, 32)
	if err == nil {
		count, err = strconv.ParseUint(fields[2], 10, 32)
	}
	return fields[0], start, count, err
}
