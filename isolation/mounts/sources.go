// SPDX-License-Identifier: Apache-2.0

// Which host directories a box may have, and who owns the files that it creates there.

package mounts

import (
	"errors"
	"fmt"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/linux"
	"github.com/boxd-dev/boxd/isolation"
)

// AllowRule allows host directories as mount sources.
type AllowRule struct {
	// Path is an absolute directory, which is allowed with everything below it; or homePath.
	Path string
	// UID and GID own what boxes create there, whoever the caller is; 0: the caller owns it.
	UID, GID uint32
}

// homePath is the rule for directories that callers own below their own home: not the home itself
// and nothing below one of its dot directories.
const homePath = "{home}"

// parseAllowRule parses a rule in the form that boxd passes: a path, or path=uid:gid.
func parseAllowRule(text string) (AllowRule, error) {
	path, ids, owned := strings.Cut(text, "=")
	r := AllowRule{Path: path}
	if path != homePath && (!isolation.CleanAbsolute(path) || system(path, "")) {
		return r, fmt.Errorf("allow rule %q: want %s or an absolute path that is no system directory", text, homePath)
	}
	if !owned {
		return r, nil
	}
	uid, gid, _ := strings.Cut(ids, ":")
	u, uerr := strconv.ParseUint(uid, 10, 32)
	g, gerr := strconv.ParseUint(gid, 10, 32)
	if uerr != nil || gerr != nil || u == 0 || g == 0 {
		return r, fmt.Errorf("allow rule %q: want an owner as uid:gid, neither of them 0", text)
	}
	r.UID, r.GID = uint32(u), uint32(g)
	return r, nil
}

// SourceRules say which directories may be mounted.
type SourceRules struct {
	Allow []AllowRule
	State string // boxd's state directory, without symbolic links; never mounted
}

// Source is a mount source that has been opened and is permitted.
type Source struct {
	Mount isolation.Mount
	FD    int
	Owner Owner
}

// Owner is the host user and group that the box user acts as in a mount.
type Owner struct {
	uid, gid uint32
	// dirGID is the directory's own group. The box user is not in it unless it is gid, but the id
	// map must contain it: the kernel refuses every write to an inode whose ids it could not
	// write back.
	dirGID  uint32
	Mapped  bool // false: there is no id map, and the box user owns nothing there
	Managed bool // for a managed workspace, see WorkOwner
	host    bool // for a tree of the host, see HostOwner
}

// UID returns the owner's uid on the host.
func (o *Owner) UID() uint32 { return o.uid }

// ofHost reports whether this is HostOwner, for trees of the host that no caller names.
func (o *Owner) ofHost() bool { return o.host }

// words encodes an owner for another process of the keeper. That of a managed workspace cannot be
// encoded.
func (o *Owner) words() []uint32 {
	words := []uint32{o.uid, o.gid, o.dirGID, 0}
	if o.Mapped {
		words[3] = 1
	}
	return words
}

// OwnerOf decodes an owner from Words.
func OwnerOf(words [4]uint32) Owner {
	return Owner{uid: words[0], gid: words[1], dirGID: words[2], Mapped: words[3] != 0}
}

// Open opens the source of a mount with the caller's access rights and checks it against the
// rules. The descriptor it returns is what will be mounted, whatever happens to the path
// afterwards. Open waits for the filesystem that the caller has named.
func (r *SourceRules) Open(caller isolation.Caller, m isolation.Mount) (*Source, error) {
	fd := -1
	var oerr error
	err := asCaller(caller, func() {
		fd, oerr = linux.Openat2(unix.AT_FDCWD, m.Source, &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS,
		})
		if oerr == nil { // O_PATH needs no permission on the directory itself
			oerr = unix.Faccessat2(fd, "", accessMode(m), unix.AT_EMPTY_PATH|unix.AT_EACCESS)
		}
	})
	src := &Source{Mount: m, FD: fd}
	if err == nil && oerr != nil {
		err = failed(m.Source, oerr)
	}
	if err == nil {
		src.Owner, err = r.permit(caller, m, fd)
	}
	if err == nil {
		return src, nil
	}
	if fd >= 0 {
		unix.Close(fd)
	}
	return nil, err
}

// Field is the field that a refusal of the source of the first mount names.
const Field = "mounts[0].source"

// failed returns the error for a source that the kernel refused.
func failed(path string, err error) error {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		errno = unix.EPROTO
	}
	return &isolation.StepError{Step: isolation.StepMountSource, Item: path, Errno: errno}
}

func accessMode(m isolation.Mount) uint32 {
	if m.Writable {
		return unix.R_OK | unix.W_OK | unix.X_OK
	}
	return unix.R_OK | unix.X_OK
}

// permit judges the directory that was opened, not the path that was asked for.
func (r *SourceRules) permit(caller isolation.Caller, m isolation.Mount, fd int) (Owner, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlink("/proc/self/fd/"+strconv.Itoa(fd), buf)
	if err != nil {
		return Owner{}, failed(m.Source, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Owner{}, failed(m.Source, err)
	}
	d := directory{path: string(buf[:n]), uid: st.Uid, gid: st.Gid, state: r.State, home: homeOf}
	owner, allowed := d.permit(r.Allow, caller, m)
	if allowed != "" {
		return owner, &isolation.StepError{Step: isolation.StepMountSource, Item: m.Source, Errno: unix.EACCES, Refused: &isolation.Refusal{
			Field: Field, Value: m.Source, Allowed: allowed,
		}}
	}
	return owner, nil
}

// directory holds what the rules judge by.
type directory struct {
	path     string // without symbolic links
	uid, gid uint32
	state    string // state directory of the rules
	home     func(uid uint32) string
}

// permit applies the rules. A non-empty second result says what would have been allowed.
func (d *directory) permit(rules []AllowRule, caller isolation.Caller, m isolation.Mount) (Owner, string) {
	if !isolation.CleanAbsolute(d.path) || system(d.path, d.state) {
		return Owner{}, "outside system directories and those of boxd"
	}
	var rule *AllowRule
	for i := range rules {
		if d.matches(&rules[i], caller) {
			rule = &rules[i]
			break
		}
	}
	if rule == nil {
		return Owner{}, describe(rules)
	}
	owner := d.owner(rule, caller, m)
	owner.dirGID = d.gid
	if !m.Writable {
		owner.Mapped = owner.uid != 0 && owner.uid == d.uid
		return owner, ""
	}
	if owner.uid == 0 || owner.gid == 0 {
		return Owner{}, isolation.NotRootsDirectory
	}
	if owner.uid != d.uid {
		return Owner{}, fmt.Sprintf("a directory owned by uid %d, for writing (this one is uid %d's)", owner.uid, d.uid)
	}
	owner.Mapped = true
	return owner, ""
}

func (d *directory) matches(rule *AllowRule, caller isolation.Caller) bool {
	if rule.Path != homePath {
		return isolation.Within(d.path, rule.Path)
	}
	home := d.home(caller.UID)
	if home == "" || home == "/" || d.path == home || !isolation.Within(d.path, home) {
		return false
	}
	return d.uid == caller.UID && d.path[len(home)+1] != '.'
}

// owner returns who owns the files that the box creates there.
func (d *directory) owner(rule *AllowRule, caller isolation.Caller, m isolation.Mount) Owner {
	switch {
	case rule.UID != 0:
		return Owner{uid: rule.UID, gid: rule.GID}
	case caller.UID != 0:
		return Owner{uid: caller.UID, gid: caller.GID}
	case m.Owner != 0:
		return Owner{uid: m.Owner, gid: primaryGroup(m.Owner)}
	}
	return Owner{uid: d.uid, gid: primaryGroup(d.uid)}
}

func describe(rules []AllowRule) string {
	if len(rules) == 0 {
		return "listed in mounts.allow (empty)"
	}
	parts := make([]string, len(rules))
	for i, r := range rules {
		parts[i] = r.Path
		if r.Path == homePath {
			parts[i] = "a directory of your own below your home, outside dot directories"
		}
	}
	return strings.Join(parts, ", or below ") + " (mounts.allow)"
}

// system reports whether path is one that no configuration can allow: the system's own
// directories, those that contain them, and boxd's state directory.
func system(path, state string) bool {
	for _, dir := range []string{
		"/proc", "/sys", "/dev", "/etc", "/boot", "/run", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
		"/var/run", "/var/lib/boxd", state,
	} {
		if dir != "" && (isolation.Within(path, dir) || isolation.Within(dir, path)) {
			return true
		}
	}
	return false
}

// homeOf returns a user's home in /etc/passwd with symbolic links resolved, as /home itself is
// one on some hosts; "" if there is none.
func homeOf(uid uint32) string {
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil || !isolation.CleanAbsolute(u.HomeDir) {
		return ""
	}
	home, err := filepath.EvalSymlinks(u.HomeDir)
	if err != nil {
		return ""
	}
	return home
}

// primaryGroup returns the group of a user in /etc/passwd, or else the group of the same number.
func primaryGroup(uid uint32) uint32 {
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return uid
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return uid
	}
	return uint32(gid)
}

// asCaller runs f on a thread with the caller's file access rights. The thread ends when f
// returns.
func asCaller(c isolation.Caller, f func()) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
		err := become(c)
		if err == nil {
			f()
		}
		result <- err
	}()
	return <-result
}

// become gives this thread alone another identity for file access (setfsuid(2)). Leaving uid 0
// also drops the capabilities that override permissions.
func become(c isolation.Caller) error {
	if _, _, errno := syscall.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(c.Groups)), slicePointer(c.Groups), 0); errno != 0 {
		return fmt.Errorf("setgroups: %w", errno)
	}
	_, _, _ = syscall.RawSyscall(unix.SYS_SETFSGID, uintptr(c.GID), 0, 0)
	_, _, _ = syscall.RawSyscall(unix.SYS_SETFSUID, uintptr(c.UID), 0, 0)
	// The calls report no error; a call with an invalid id returns the id in force.
	uid, _, _ := syscall.RawSyscall(unix.SYS_SETFSUID, ^uintptr(0), 0, 0)
	gid, _, _ := syscall.RawSyscall(unix.SYS_SETFSGID, ^uintptr(0), 0, 0)
	if uint32(uid) != c.UID || uint32(gid) != c.GID {
		return errors.New("setfsuid did not take effect")
	}
	return nil
}

// WorkOwner is the owner of managed workspaces on disk: the box user's own number. No user of the
// host can use the files by it, as the directory above is closed to everyone.
func WorkOwner() Owner {
	return Owner{uid: isolation.BoxUID, gid: isolation.BoxGID, Mapped: true, Managed: true}
}

// HostOwner is the owner of the trees of the host in boxes with a writable root. It is root of
// the host; every other user has the same number in the box as on the host, but that of the box
// user, which is the last, and nobody. None of them is in-box root: overlay.enterHost needs a mounter that owns
// nothing.
func HostOwner() Owner { return Owner{Mapped: true, host: true} }
