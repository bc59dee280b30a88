// SPDX-License-Identifier: Apache-2.0

// Package files is the protocol with boxfiles, the program that does file operations inside a box, as the box user. The
// host never walks a path that a box can change.
//
// boxd writes one request and its data to the program's standard input, and reads frames from its
// standard output. What the program sends is checked as if a program of the box had sent it.
package files

import "time"

// Bounds of the protocol.
const (
	maxRequest = 64 << 20 // bytes of a request, without the data that follows
	MaxAnswer  = 32 << 20 // bytes of an answer, without data
	MaxData    = 64 << 10 // bytes of one frame of data
	MaxPath    = 4095     // bytes of a path (PATH_MAX)
	MaxDepth   = 4096     // levels of directories that are entered
)

// Arguments that make the program unpack the layer of an image from its standard input: see
// cmd/boxfiles.
const (
	LayerCommand = "layer"
	LastLayer    = "last"
)

// Request asks for one operation: exactly one pointer is set. Paths are bytes, since names of
// files are; a path that is not absolute is relative to the working directory of the program.
type Request struct {
	Read   *Read   `json:",omitempty"`
	Write  *Write  `json:",omitempty"` // the content follows
	Edit   *Edit   `json:",omitempty"`
	Glob   *Glob   `json:",omitempty"`
	Grep   *Grep   `json:",omitempty"`
	List   *List   `json:",omitempty"`
	Stat   *Stat   `json:",omitempty"`
	Move   *Move   `json:",omitempty"`
	Remove *Remove `json:",omitempty"`
	Chmod  *Chmod  `json:",omitempty"`
	Mkdir  *Mkdir  `json:",omitempty"`
	Get    *Get    `json:",omitempty"`
	Put    *Put    `json:",omitempty"` // the content follows
	Watch  *Watch  `json:",omitempty"`
	Prune  *Prune  `json:",omitempty"`
	Pack   *Pack   `json:",omitempty"`
	Unpack *Unpack `json:",omitempty"` // the archive follows

	Snapshot *Snapshot `json:",omitempty"`
	Changes  *Changes  `json:",omitempty"` // the snapshot follows
	Diff     *Diff     `json:",omitempty"`
	Sweep    *Sweep    `json:",omitempty"`
	Commit   *Commit   `json:",omitempty"`
	Discard  *Discard  `json:",omitempty"`
}

// Reads returns the path that a request is about if it changes nothing in the box.
func (r *Request) Reads() (path []byte, ok bool) {
	switch {
	case r.Read != nil:
		return r.Read.Path, true
	case r.Glob != nil:
		return r.Glob.Path, true
	case r.Grep != nil:
		return r.Grep.Path, true
	case r.List != nil:
		return r.List.Path, true
	case r.Stat != nil:
		return r.Stat.Path, true
	}
	return nil, false
}

// Answer is the result of a request: the pointer of its kind, or Failure.
type Answer struct {
	Read    *ReadAnswer  `json:",omitempty"` // the content came before, as data
	Write   *WriteAnswer `json:",omitempty"` // for Write, Put and Mkdir
	Edit    *EditAnswer  `json:",omitempty"`
	List    *ListAnswer  `json:",omitempty"` // for List and Glob
	Grep    *GrepAnswer  `json:",omitempty"`
	Stat    *Entry       `json:",omitempty"`
	Archive *Archived    `json:",omitempty"` // for Unpack, and for Pack and Commit, whose archive came before as data
	Done    bool         `json:",omitempty"` // for Move, Remove, Chmod, Prune and Sweep; for Get and Watch after their notices

	Snapshot *SnapshotAnswer `json:",omitempty"` // the snapshot came before, as data
	Changes  *ChangesAnswer  `json:",omitempty"` // for Changes and Diff

	Discarded *Discarded `json:",omitempty"`

	Failure *Failure `json:",omitempty"`
}

// Read asks for a part of a regular file: by lines, or from Offset on if ByBytes is set.
type Read struct {
	Path    []byte
	Line    int   // the first line, from 1
	Lines   int   // number of lines, at most
	ByBytes bool  // use Offset instead of Line and Lines
	Offset  int64 // the first byte, from 0
	Bytes   int64 // number of bytes, at most, in both cases
	Raw     bool  // any bytes; otherwise only text, which is UTF-8 without NUL
	Digest  int64 // digest the whole file, if it has at most this many bytes; 0: no digest
}

// ReadAnswer describes what was read.
type ReadAnswer struct {
	File      Entry
	FirstLine int   // 0 if bytes were asked for, or nothing was read
	LastLine  int   // as FirstLine
	Offset    int64 // of the first byte read
	Next      int64 // of the first byte not read
	Cut       string
}

// Which bound an answer was cut off by.
const (
	CutLines   = "lines"
	CutBytes   = "bytes"
	CutEntries = "entries" // results, or entries visited
	CutFiles   = "files"
)

// Modes of writing.
const (
	Overwrite = "overwrite"
	Append    = "append"
	Create    = "create" // fails if the path exists
)

// Write asks to write the data that follows to a file, atomically (by renaming) unless it is
// appended.
type Write struct {
	Path    []byte
	How     string
	Parents bool    // create missing directories
	Mode    *uint32 // permissions; nil: those of the replaced file, 0644 for a new one
	IfMatch string  // digest that the file must have
	Most    int64   // bound on the data in bytes
	Xattrs  *Xattrs // nil: a replaced file keeps those it had
}

// Xattrs replaces the extended attributes of a file whose names begin with a prefix: the given ones are set, all others with it
// are removed. On a filesystem without attributes values are refused (Unsupported).
type Xattrs struct {
	Prefix string            // begins with "user."
	Values map[string][]byte // by full name; empty: all are removed
}

// WriteAnswer describes the file or directory.
type WriteAnswer struct {
	File    Entry
	Created bool
}

// Mkdir asks for a directory. If it exists the failure is Exists, and if something else exists there NotDirectory.
type Mkdir struct {
	Path     []byte
	Mode     uint32 // permission bits of the directory; parents get 0755
	Parents  bool   // create missing directories
	Existing bool   // succeed if the directory exists, and leave it as it is
}

// Get asks for a regular file or a part of it, of any size. A notice with Opening comes before the data. The answer is Done, even
// if the file became shorter meanwhile and there is less data than Opening says.
type Get struct {
	Path   []byte
	Offset int64 // the first byte; negative: from the end of the file
	Length int64 // bytes, at most; 0: to the end
}

// Opening says which part of a file follows.
type Opening struct {
	File           Entry // as it was before the first byte was read
	Offset, Length int64 // Offset is beyond the end of the file, and Length 0, if that was asked for
}

// Put asks to write the data that follows to a file as it arrives, of any length. An existing file is truncated in place: it
// keeps its inode, its permissions and other names. What was written before a failure stays.
type Put struct {
	Path    []byte
	Parents bool    // create missing directories
	Mode    *uint32 // permissions of a new file; nil: 0644
	Xattrs  *Xattrs // nil: those of the file stay
}

// Watch asks for events in a directory, beginning with a Watching event, until the directory is gone or the reader closes.
type Watch struct {
	Path      []byte
	Recursive bool // also in directories below, including later ones
	Entries   bool // describe what was created, written to or changed
	Limit     int  // bound on watched directories; more are a Failure
}

// Event is an event in a watched directory.
type Event struct {
	What  string
	Path  []byte `json:",omitempty"` // relative to the directory; "." is the directory itself
	From  []byte `json:",omitempty"` // of Created: its former path, if it was renamed within the watched tree
	Type  string `json:",omitempty"` // "" if unknown: for what is gone and was no directory
	Entry *Entry `json:",omitempty"` // of Created, Written and Chmodded, if requested and still there
}

// Kinds of events. A rename is Renamed with the old name, followed by Created with the new one.
const (
	Watching = "watching" // the first event: later changes are reported
	Created  = "create"
	Written  = "write"
	Removed  = "remove"
	Renamed  = "rename"
	Chmodded = "chmod"    // permissions, owner, times or attributes
	Overflow = "overflow" // events were lost; with Path only those of that directory, whose path is too long to watch
)

// eventKinds lists the kinds of events.
func eventKinds() []string {
	return []string{Watching, Created, Written, Removed, Renamed, Chmodded, Overflow}
}

// Notice is sent before an answer, and before the data of Get.
type Notice struct {
	Opening *Opening `json:",omitempty"`
	Events  []Event  `json:",omitempty"`
}

// Edit asks for replacements in a text, all or none of them, one after the other.
type Edit struct {
	Path    []byte
	Edits   []Replacement
	IfMatch string
	Most    int64 // bound on the file in bytes, before and after
}

// Replacement is one edit: Old must occur exactly once, or with All at least once.
type Replacement struct {
	Old, New []byte
	All      bool
}

// EditAnswer describes the file and what was replaced.
type EditAnswer struct {
	File  Entry
	Edits []Replaced
}

// Replaced says how often an edit was made, and its first line number, in the text before this
// edit.
type Replaced struct{ Count, Line int }

// Glob asks for files below Path whose path relative to it matches a pattern.
type Glob struct {
	Path    []byte
	Pattern string
	Limit   int  // bound on results
	Walk    int  // bound on entries visited
	Ignore  bool // leave out what searches ignore, see package search
	ByName  bool // sort by name instead of newest first
}

// Grep asks for the matching lines of the files below Path.
type Grep struct {
	Path          []byte
	Pattern       string // RE2 syntax
	Literal       bool   // Pattern is literal text
	IgnoreCase    bool
	Include       []string // globs; empty: all files
	Exclude       []string
	Ignore        bool
	Before, After int // lines of context
	NamesOnly     bool
	Limit         int   // bound on matching lines, or names
	Walk          int   // bound on entries visited
	MaxFile       int64 // bytes; larger files are skipped
	MaxTotal      int64 // bound on the bytes read
	MaxLine       int   // bytes of a line that are returned
}

// GrepAnswer is what was found, file by file, sorted by path.
type GrepAnswer struct {
	Files    []Found
	Matches  int // number of lines
	Searched int // number of files
	Binary   int // files skipped because they are not text
	Large    int // skipped because they are larger than MaxFile
	Failed   int // could not be read
	Cut      string
}

// Found is what was found in a file.
type Found struct {
	Path  []byte // relative to the path that was searched
	Lines []Line `json:",omitempty"`
}

// Line is a line of a file.
type Line struct {
	Number int
	Match  bool // a match, not context
	Column int  // of the match, in bytes from 1; 0 for context
	Text   []byte
	Cut    bool
}

// List asks for the entries of a directory, down to a depth, sorted by name.
type List struct {
	Path   []byte
	Depth  int // 1: only the directory itself
	Limit  int
	Xattrs bool // as in Stat
}

// ListAnswer lists entries with their paths relative to the path of the request.
type ListAnswer struct {
	Entries []Entry
	Cut     string
}

// Stat asks about what is at a path.
type Stat struct {
	Path   []byte
	Follow bool  // follow a symbolic link at the end of the path
	Digest int64 // as in Read
	Xattrs bool  // include the extended attributes of files and directories
}

// Entry describes a file or directory.
type Entry struct {
	Path   []byte `json:",omitempty"`
	Type   string
	Size   int64
	Mode   uint32 // permissions
	Time   time.Time
	Target []byte `json:",omitempty"` // of a symbolic link
	Digest string `json:",omitempty"` // sha256: and 64 hexadecimal digits

	// The rest is set for Stat, List, Mkdir, Get, Put and Watch.
	Owner *Owner `json:",omitempty"`
	// The target of a symbolic link, fully resolved; all three are missing if it does not exist or cannot be reached.
	Resolved   []byte `json:",omitempty"` // absolute; nil if it has no path
	TargetType string `json:",omitempty"`
	TargetMode uint32 `json:",omitempty"` // permissions

	Xattrs    map[string][]byte `json:",omitempty"` // those of the box user (user.*) with UTF-8 names, if requested
	XattrsCut bool              `json:",omitempty"` // there are more than MaxXattrs
}

// Owner is the owner of a file. Names are from the box's own /etc/passwd and /etc/group; "": none.
type Owner struct {
	UID, GID    uint32
	User, Group string
}

// MaxXattrs bounds the names and values of the attributes reported of one file, in bytes.
const MaxXattrs = 64 << 10

// Types of an Entry.
const (
	TypeFile      = "file"
	TypeDirectory = "directory"
	TypeLink      = "symlink"
	TypeFIFO      = "fifo"
	TypeSocket    = "socket"
	TypeDevice    = "device"
)

// types lists them.
func types() []string {
	return []string{TypeFile, TypeDirectory, TypeLink, TypeFIFO, TypeSocket, TypeDevice}
}

// Move renames a file or directory.
type Move struct {
	From, To  []byte
	Overwrite bool // replace an existing target
	Parents   bool // create missing directories
}

// Remove removes a file or directory.
type Remove struct {
	Path      []byte
	Recursive bool // a directory with everything in it
	Missing   bool // succeed if there is nothing to remove
}

// Chmod changes the mode of what is at a path; for a symbolic link, that of its target.
type Chmod struct {
	Path []byte
	Mode uint32 // permission bits only
}

// Prune removes subdirectories of a directory: all but the newest Keep, and those last changed
// longer than Age ago. Zero means no bound. Except is never removed.
type Prune struct {
	Path   []byte
	Except []byte // a name
	Keep   int
	Age    time.Duration
}

// Bounds bound an archive.
type Bounds struct {
	Bytes   int64 // of all contents together
	Entries int
	File    int64 // bytes of one file
}

// Pack asks for a tar archive of a directory's content, of a part of it, or of one file.
type Pack struct {
	Path   []byte
	Some   [][]byte // paths relative to Path, which is a directory: only these, with everything below those that are directories
	Bounds Bounds
	// LeaveOut skips unreadable entries of a directory, and notes that in the archive.
	LeaveOut bool `json:",omitempty"`
	// Links packs a file with several names in a directory once, and its other names as hard links.
	Links bool `json:",omitempty"`
}

// Unpack unpacks the tar archive that follows into a directory, all of it or nothing. It may be
// compressed by gzip.
type Unpack struct {
	Path         []byte // created if missing
	Bounds       Bounds
	CaseTwins    bool // allow names that differ only in case
	OutwardLinks bool // allow symbolic links that lead out of the directory
	Overwrite    bool // replace existing files
}

// Sweep removes leftovers of a killed Unpack, and nothing else.
type Sweep struct {
	Path []byte // that of the Unpack
}

// Archived describes an archive.
type Archived struct {
	Entries int
	Bytes   int64
	Skipped int // number of entries that are neither file, directory nor link
}

// Failure says why a request has failed.
type Failure struct {
	Kind    Kind
	Path    []byte `json:",omitempty"`
	Text    string // what happened
	Hint    string `json:",omitempty"`
	Field   string `json:",omitempty"` // field of the request, if that is wrong
	Allowed string `json:",omitempty"`
}

func (f *Failure) Error() string {
	if len(f.Path) > 0 {
		return string(f.Path) + ": " + f.Text
	}
	return f.Text
}

// Kind is the kind of a failure.
type Kind string

// The kinds.
const (
	NotFound     Kind = "not_found"
	Exists       Kind = "exists"
	IsDirectory  Kind = "is_directory"
	NotDirectory Kind = "not_directory"
	NotRegular   Kind = "not_regular" // a FIFO, socket, device or a file of the kernel
	Binary       Kind = "binary"
	TooLarge     Kind = "too_large"
	TooMany      Kind = "too_many"
	NoMatch      Kind = "no_match"
	NotUnique    Kind = "not_unique"
	Changed      Kind = "changed"
	NotPermitted Kind = "not_permitted"
	ReadOnly     Kind = "read_only"
	NoSpace      Kind = "no_space"
	NotEmpty     Kind = "not_empty"
	Busy         Kind = "busy"
	OtherDisk    Kind = "other_filesystem"
	BadPath      Kind = "bad_path"
	BadPattern   Kind = "bad_pattern"
	BadArchive   Kind = "bad_archive"
	BadRequest   Kind = "bad_request"
	Unsupported  Kind = "unsupported" // by the filesystem
	Broken       Kind = "io_error"
)

// kinds lists them all.
func kinds() []Kind {
	return []Kind{
		NotFound, Exists, IsDirectory, NotDirectory, NotRegular, Binary, TooLarge, TooMany, NoMatch, NotUnique, Changed, NotPermitted,
		ReadOnly, NoSpace, NotEmpty, Busy, OtherDisk, BadPath, BadPattern, BadArchive, BadRequest, Unsupported, Broken,
	}
}
