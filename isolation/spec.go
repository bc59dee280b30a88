// SPDX-License-Identifier: Apache-2.0

// Package isolation says what a box is: its specification, the steps of its start, the messages of boxd, the keeper,
// PID 1 of a box.
//
// It is plain data without input or output. The privileged half is cmd/boxkeeper, the half
// that runs inside a box is cmd/boxinit, and boxd controls a box through isolation/client.
package isolation

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/cgroup"
)

// Ids inside a box. The box user has no privilege even there; PID 1 is in-box root with the few
// it needs.
const (
	BoxUID = 1000
	BoxGID = 1000
	// RootID is who a program that runs as root is to the other programs of its box, as a user and as a group. To itself it is 0,
	// in a user namespace that shows the ids of the box from 1 on as they are, but this one and those of PID 1 (see
	// Setup.Root).
	RootID = 65533
	// NobodyID is what the kernel shows for ids that a user namespace does not map (user_namespaces(7)).
	NobodyID = 65534
	// IDRange is how many host ids every session has of its own.
	IDRange = 1 << 16
)

// Directories of a box.
const (
	Workspace = "/workspace"
	Home      = "/home/box" // of the box user, where a Spec names no other
	// FilesProgram is where boxfiles is. It is part of the image's tree, which nothing in a box
	// can change.
	FilesProgram = "/var/lib/boxd/boxfiles"
)

// Bounds of a Spec.
const (
	// MaxMounts leaves room for the workspace, the cgroup, the listening socket and the message
	// in one message of 253 descriptors.
	MaxMounts   = 249
	rootMounts  = 8    // mounts of a writable root and of a home on disk, at most: the changes, trees of the host, the home
	MaxHostname = 63   // one DNS label
	MaxPath     = 4095 // PATH_MAX without its NUL
	MaxGroups   = 256
	KeyLen      = 32
	MinScratch  = 1 << 20
	// MinPids leaves room for PID 1, whose own few threads count against the same limit where
	// RLIMIT_NPROC enforces it.
	MinPids = 16
)

// Spec describes one box. It contains no pointer and no descriptor, so that it can be logged,
// compared and replayed; Validate checks it without touching the host.
type Spec struct {
	Key         string // names the box on the host: KeyLen of a-z0-9, derived from principal and id
	Hostname    string
	Caller      Caller
	Scratch     Scratch
	Rlimits     []Rlimit
	Grouped     bool          // the box has cgroups, which enforce Limits
	Scope       string        // path of a cgroup that systemd has made for the box, see ScopeOf; "": the keeper makes one
	Limits      cgroup.Limits // for all programs together
	View        cgroup.Limits // limits that programs see, whatever enforces them
	Owner       cgroup.Owner  // owner whose cgroup contains those of the box, if the keeper makes them; its uid is Caller.UID
	Work        Quota         // quota of /workspace, if that is managed; zero: none
	ManagedWork bool          // /workspace is a directory of boxd's own, made and removed by the keeper
	Space       string        // key of the named workspace mounted there, see ChangeSpace; "": a new one that ends with the box
	Lent        []string      // named workspaces mounted read-only, each its key followed by the target
	Mounts      []Mount
	Network     NetworkSpec
	Image       string // tree of an image in the store; "": the host's programs
	// Writable lets programs write to the root. Their changes count as Work, and stay until the box ends: beside
	// the workspace, unless that is a named one.
	Writable bool
	// DiskHome puts the home directory on disk instead of into memory. It counts as Work, and stays
	// until the box ends.
	DiskHome bool
	// Resume starts the box with what an earlier box of the same key has left on disk, see
	// EndBox.RemoveWork. If the start fails, all of that stays.
	Resume bool
	// User is the name and the home directory of the box user; both empty: BoxUser and Home.
	User User
}

// BoxUser is the name of the box user and of its group, where a Spec names no other.
const BoxUser = "box"

// User is the name and home directory of the box user.
type User struct{ Name, Home string }

// Validate checks a user other than the zero one.
func (u *User) Validate() error {
	switch {
	case !ValidUserName(u.Name):
		return &Refusal{"user_name", u.Name, UserNames}
	case !ValidHome(u.Home):
		return &Refusal{"home", u.Home, Homes}
	}
	return nil
}

// What names of users and home directories must be, for errors.
const (
	UserNames = "1 to 32 characters of a-z, 0-9, _ and -, of which the first is a letter or _, and neither root nor nobody"
	Homes     = "/root, or /home/NAME with a NAME of 1 to 64 letters, digits and . _ -, of which the first is no . or -"
)

// ValidUserName reports whether a text can be the name of the box user: it becomes a field of a
// line of /etc/passwd (passwd(5)).
func ValidUserName(name string) bool {
	return name != "" && len(name) <= 32 && name != "root" && name != "nobody" && (name[0] < '0' || name[0] > '9') && name[0] != '-' &&
		strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") == ""
}

// ValidHome reports whether a path can be the home directory of the box user. Neither it nor any
// directory above it is one in which programs of a box find anything else.
func ValidHome(home string) bool {
	name, below := strings.CutPrefix(home, "/home/")
	return home == "/root" || below && name != "" && len(name) <= 64 && name[0] != '.' && name[0] != '-' &&
		strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == ""
}

// HomeDir returns the home directory of the box user.
func (s *Spec) HomeDir() string { return cmp.Or(s.User.Home, Home) }

// OwnDir reports whether the box has a directory on disk that holds more than a workspace.
func (s *Spec) OwnDir() bool { return s.Writable || s.DiskHome }

// Quota bounds a directory on disk and everything below it. Both numbers are zero, or neither.
type Quota struct{ Bytes, Inodes uint64 }

// Caller is the user that requests the box; host directories are opened with this identity.
type Caller struct {
	UID, GID uint32
	Groups   []uint32
}

// Scratch bounds /tmp, /run, /dev/shm and the home directory together: they are one tmpfs.
type Scratch struct {
	Bytes  uint64
	Inodes uint64
}

// Rlimit is one resource limit, soft and hard, of every process in the box (setrlimit(2)).
type Rlimit struct {
	Resource uint32
	Soft     uint64
	Hard     uint64
}

// Mount puts a host directory into the box.
type Mount struct {
	Source   string // absolute path on the host, a directory
	Target   string // absolute path in the box
	Writable bool
	// Owner is the host id that owns the directory's files and that the box user acts as there.
	// Zero: the caller, or for a caller with uid 0 the directory's owner. Only a caller with uid
	// 0 may name another.
	Owner uint32
	// NoSymlinks makes the kernel follow no symbolic link in the directory (ELOOP).
	NoSymlinks bool
	Bound      bool // Spec.Work is a quota on this directory
}

// NotRootsDirectory is what the source of a writable mount must be.
const NotRootsDirectory = "a directory of a user other than root: nothing in a box ever writes as root of the host"

// Refusal says which field of a Spec or request is not acceptable, and what would be.
type Refusal struct {
	Field, Value, Allowed string
}

func (r *Refusal) Error() string {
	return r.Field + " = " + strconv.Quote(shorten(r.Value)) + ": must be " + r.Allowed
}

// Validate checks everything that can be checked without the host. A valid Spec has no target
// outside the roots a box may write to, no two mounts on one target, and no number out of bounds.
func (s *Spec) Validate() error {
	switch {
	case !ValidKey(s.Key):
		return &Refusal{"key", s.Key, strconv.Itoa(KeyLen) + " characters of a-z and 0-9"}
	case !validHostname(s.Hostname):
		return &Refusal{"hostname", s.Hostname, "a DNS label: a-z, 0-9 and inner hyphens, at most 63"}
	case s.Scratch.Bytes < MinScratch || s.Scratch.Inodes < 64:
		return &Refusal{"tmp", strconv.FormatUint(s.Scratch.Bytes, 10), "at least 1MiB and 64 inodes"}
	case s.Scope != "" && (!s.Grouped || !s.validScope()):
		return &Refusal{"scope", s.Scope, "for a box with cgroups, a clean path below " + cgroup.Mount + " that ends in /" + ScopeOf(s.Key)}
	case !cgroup.ValidOther(s.Owner.Name):
		return &Refusal{"owner", s.Owner.Name, strconv.Itoa(cgroup.OtherLen) + " characters of a-z and 0-9, or none"}
	case (s.Work.Bytes == 0) != (s.Work.Inodes == 0) || s.Work.Bytes > 0 && !s.ManagedWork && !s.OwnDir() && !slices.ContainsFunc(s.Mounts, func(m Mount) bool { return m.Bound }):
		return &Refusal{"workspace_quota", strconv.FormatUint(s.Work.Bytes, 10), "bytes and inodes together, for a managed workspace, a writable root, a home on disk or a directory of the host"}
	case s.Space != "" && (!s.ManagedWork || !ValidKey(s.Space) || s.Work != Quota{} && !s.OwnDir()):
		return &Refusal{"workspace", s.Space, "the key of a named workspace, for a box without a quota of its own and without a mount there"}
	case s.Image != "" && !ValidTree(s.Image):
		return &Refusal{"image", s.Image, "the name of a tree of the store"}
	case s.Writable && len(s.Mounts)+len(s.Lent) > MaxMounts-rootMounts:
		return &Refusal{"read_only_root", "false", "true, or with at most " + strconv.Itoa(MaxMounts-rootMounts) + " mounts"}
	case s.DiskHome && len(s.Mounts)+len(s.Lent) > MaxMounts-rootMounts:
		return &Refusal{"home_on_disk", "true", "false, or with at most " + strconv.Itoa(MaxMounts-rootMounts) + " mounts"}
	case len(s.Mounts)+len(s.Lent) > MaxMounts:
		return &Refusal{"mounts", strconv.Itoa(len(s.Mounts)), "at most " + strconv.Itoa(MaxMounts)}
	case len(s.Caller.Groups) > MaxGroups:
		return &Refusal{"caller groups", strconv.Itoa(len(s.Caller.Groups)), "at most " + strconv.Itoa(MaxGroups)}
	}
	if s.User != (User{}) {
		if err := s.User.Validate(); err != nil {
			return err
		}
	}
	seen := map[string]bool{}
	if s.ManagedWork {
		seen[Workspace] = true
	}
	if s.DiskHome {
		seen[s.HomeDir()] = true
	}
	if err := s.validLent(seen); err != nil {
		return err
	}
	for i := range s.Mounts {
		m := &s.Mounts[i]
		field := "mounts[" + strconv.Itoa(i) + "]."
		if err := m.validate(field, s.Caller.UID); err != nil {
			return err
		}
		if m.Bound && (!m.Writable || s.Work == Quota{}) {
			return &Refusal{field + "source", m.Source, "mounted rw, as workspace_quota bounds it"}
		}
		if seen[m.Target] {
			return &Refusal{field + "target", m.Target, "unique among the mounts"}
		}
		seen[m.Target] = true
	}
	return nil
}

// ScopeOf returns the name of a box's scope unit, which is also the name of its cgroup.
func ScopeOf(key string) string { return "box-" + key + ".scope" }

func (s *Spec) validScope() bool {
	dir, ok := strings.CutSuffix(s.Scope, "/"+ScopeOf(s.Key))
	return ok && CleanAbsolute(s.Scope) && Within(dir, cgroup.Mount)
}

// validate checks a mount that a box starts with. A running box can get mounts in fewer places (validTarget).
func (m *Mount) validate(field string, caller uint32) error {
	if !CleanAbsolute(m.Source) {
		return &Refusal{field + "source", m.Source, "an absolute path without . and .., NUL or a trailing slash"}
	}
	if !CleanAbsolute(m.Target) {
		return &Refusal{field + "target", m.Target, "an absolute path without . and .., NUL or a trailing slash"}
	}
	if Reserved(m.Target) {
		return &Refusal{field + "target", m.Target, Targets}
	}
	if m.Owner != 0 && caller != 0 {
		return &Refusal{field + "owner", strconv.FormatUint(uint64(m.Owner), 10), "0, unless the caller has uid 0"}
	}
	return nil
}

// Roots returns the directories in which a running box can get mounts, and in which a missing working directory is made.
// Everything else of its tree is read-only and the same for all boxes of an image, unless the box is Writable or starts with a
// mount there.
func Roots() []string {
	return []string{Workspace, Home, "/tmp", "/mnt", "/data", "/srv", "/opt", "/media", "/app", "/work", "/src", "/code"}
}

// UnderRoots reports whether a clean absolute path is one of Roots or below one.
func UnderRoots(path string) bool {
	return slices.ContainsFunc(Roots(), func(root string) bool { return Within(path, root) })
}

// Within reports whether the clean path is dir or below it, by components.
func Within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir) && (dir == "/" || path[len(dir)] == '/')
}

// CleanAbsolute reports whether path is absolute, in its shortest form and free of NUL.
func CleanAbsolute(path string) bool {
	if path == "/" {
		return true
	}
	if len(path) > MaxPath || !strings.HasPrefix(path, "/") || strings.IndexByte(path, 0) >= 0 {
		return false
	}
	for part := range strings.SplitSeq(path[1:], "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return true
}

// ValidKey reports whether a name can be the key of a box.
func ValidKey(key string) bool {
	return len(key) == KeyLen && strings.IndexFunc(key, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	}) < 0
}

func validHostname(name string) bool {
	return name != "" && len(name) <= MaxHostname && name[0] != '-' && name[len(name)-1] != '-' &&
		strings.IndexFunc(name, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
		}) < 0
}

func shorten(s string) string {
	if len(s) <= 64 {
		return s
	}
	return strings.ToValidUTF8(s[:64], "") + "…"
}

// Command is one program to start in a box.
type Command struct {
	Argv []string
	Env  []string // NAME=value, the whole environment
	Dir  string   // absolute; created if missing, unless it is to be Existing
	// Existing has the program not start unless Dir is there. PID 1 knows it since version 2 of its
	// protocol.
	Existing bool `json:",omitempty"`
	// ScriptArg is the index in Argv that PID 1 replaces by the path of a file with the script,
	// which is sent with the message: for scripts longer than one argument may be (128 KiB,
	// MAX_ARG_STRLEN in execve(2)). -1: none.
	ScriptArg    int
	ScriptSuffix string
	Stdin        Stdin
	Timeout      time.Duration // 0: none
	KeepRunning  bool          // do not kill processes that the command has left running
	Limits       cgroup.Limits // for this program, in a box with cgroups
	Output       Output
	// Durable makes PID 1 hold the program's standard input, output and exit until they are
	// forgotten, whatever becomes of boxd; boxd gets its output as it grows.
	Durable bool
	// Terminal gives a durable program a terminal: its output is then one stream, and Stdin is StdinPipe.
	Terminal *Terminal
	// Direct hands over boxd's ends of a durable program's standard input, output and error, for
	// a caller that wants the pipes themselves: nothing that goes through them is retained. Stdin
	// is StdinNull then.
	Direct bool
	// Merged makes standard error the pipe of standard output; neither with Terminal, which is one
	// stream anyway, nor with Direct. PID 1 knows it since version 3 of its protocol.
	Merged bool `json:",omitempty"`
	// Spool keeps the output of a durable program that is not Direct on the disk of the workspace, within its quota, and not in
	// memory. PID 1 knows it since version 4 of its protocol.
	Spool bool `json:",omitempty"`
	// Root runs the program as root of the box, see Setup.Root. PID 1 knows it since version 5 of its protocol.
	Root bool `json:",omitempty"`
	// Wait makes a durable program wait for its readers from the start, until a Pace says
	// otherwise.
	Wait bool
	// Continue is a durable program that has ended, whose output this durable one continues. 0:
	// none.
	Continue uint32
}

// Terminal is the size of a terminal in characters; neither is zero.
type Terminal struct{ Rows, Cols uint16 }

// Stdin says where a program reads from.
type Stdin uint8

// The kinds of standard input.
const (
	StdinNull Stdin = iota // end of file at once
	StdinFile              // a file that is sent with the message
	StdinPipe              // for a durable program: what boxd writes, see Started in box_protocol.go
)

// MaxOutput is the most that can be retained in memory of each end of a stream, in bytes.
const MaxOutput = 256 << 20

// MaxSpool is the same for output on disk.
const MaxSpool = 1 << 40

// Output says what is retained of each of the two streams: the first Head bytes and the last
// Tail. What is in between is dropped and counted. The program never waits, unless a Pace says
// so.
type Output struct{ Head, Tail uint64 }

// Times say how long a box lives without boxd. A box that has never received them ends when boxd
// does.
type Times struct {
	Grace  time.Duration // after boxd has gone without setting Parked; 0: it ends at once
	Parked bool          // boxd leaves the box running on purpose: Grace does not count
	Idle   time.Duration // after the last program has ended; 0: no limit
	End    time.Duration // from now; 0: none
}

// Reason is why a program is no longer running.
type Reason uint8

// The reasons PID 1 can know.
const (
	ReasonExited Reason = iota
	ReasonSignaled
	ReasonTimedOut
	ReasonCanceled // killed on request
	ReasonOOM      // killed by the kernel, as the memory limit of the program or of the box was reached
)

// Exit is the outcome of a program.
type Exit struct {
	Reason      Reason
	Code        int // exit status, for ReasonExited
	Signal      int // signal number, whenever a signal ended it
	Duration    time.Duration
	UserTime    time.Duration
	SystemTime  time.Duration
	MaxRSS      uint64 // bytes, of the largest process waited for
	Leftovers   uint32 // number of processes it had started and left running, now killed
	LeftRunning bool   // processes outlive it, as Command.KeepRunning wants
	Grouped     bool   // it had a cgroup, and Use is what that has used
	Use         cgroup.Use
	Disks       [2]Disk // /workspace and the scratch directories, as the program has left them
	Streams     [2]StreamEnd
}

// Disk is how full a filesystem is, by statfs(2): with a quota, the numbers are those of the
// quota.
type Disk struct {
	Used, Limit       uint64 // bytes
	Files, FilesLimit uint64
}

// DiskOf converts the result of statfs(2).
func DiskOf(fs *unix.Statfs_t) Disk {
	size := uint64(fs.Bsize)
	return Disk{Used: (fs.Blocks - fs.Bfree) * size, Limit: fs.Blocks * size, Files: fs.Files - fs.Ffree, FilesLimit: fs.Files}
}

// StreamEnd describes a finished stream: Total bytes were written, and those from CutFrom to
// CutTo were dropped.
type StreamEnd struct {
	Total, CutFrom, CutTo uint64
}
