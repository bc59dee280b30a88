// SPDX-License-Identifier: Apache-2.0

// Package files is the conversation with boxfiles, the program that reads, writes and searches files inside a
// box, as the box user. The host never walks a path that a box can change.
//
// boxd writes one request and what belongs to it to the program's standard input, and reads frames from its
// standard output. What the program says is checked as if a program of the box had said it.
package files

import "time"

// Bounds of the conversation.
const (
	maxRequest = 64 << 20 // bytes of a request, without what follows it
	MaxAnswer  = 32 << 20 // bytes of an answer, without data
	MaxData    = 64 << 10 // bytes of one frame of data
	MaxPath    = 4095     // bytes of a path (PATH_MAX)
	MaxDepth   = 4096     // directories below each other that are entered
)

// Arguments that make the program unpack the layer of an image that its standard input is: see isolation/files/layers.
const (
	LayerCommand = "layer"
	LastLayer    = "last"
)

// Request asks for one thing: exactly one pointer is set. Paths are bytes, since names of files are; one that
// is not absolute begins at the working directory of the program.
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

// Answer is what has come of a request: the pointer of its kind, or Failure.
type Answer struct {
	Read    *ReadAnswer  `json:",omitempty"` // the content came before, as data
	Write   *WriteAnswer `json:",omitempty"`
	Edit    *EditAnswer  `json:",omitempty"`
	List    *ListAnswer  `json:",omitempty"` // of List and Glob
	Grep    *GrepAnswer  `json:",omitempty"`
	Stat    *Entry       `json:",omitempty"`
	Archive *Archived    `json:",omitempty"` // of Pack and Commit, whose archive came before as data, and Unpack
	Done    bool         `json:",omitempty"` // of Move, Remove, Chmod, Prune and Sweep

	Snapshot *SnapshotAnswer `json:",omitempty"` // the snapshot came before, as data
	Changes  *ChangesAnswer  `json:",omitempty"` // of Changes and Diff

	Discarded *Discarded `json:",omitempty"`

	Failure *Failure `json:",omitempty"`
}

// Read asks for a part of a regular file: by lines, or from Offset on if ByBytes is set.
type Read struct {
	Path    []byte
	Line    int   // the first line, from 1
	Lines   int   // at most so many
	ByBytes bool  // Offset counts, Line and Lines do not
	Offset  int64 // the first byte, from 0
	Bytes   int64 // at most so many, in both cases
	Raw     bool  // anything; otherwise only text, which is UTF-8 without NUL
	Digest  int64 // digest the whole file, if it has at most so many bytes; 0: do not
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

// What an answer was cut by.
const (
	CutLines   = "lines"
	CutBytes   = "bytes"
	CutEntries = "entries" // results, or places that were looked at
	CutFiles   = "files"
)

// Ways to write.
const (
	Overwrite = "overwrite"
	Append    = "append"
	Create    = "create" // fails if something is there
)

// Write asks for the content that follows to become that of a file, at once (by renaming) unless it is
// appended.
type Write struct {
	Path    []byte
	How     string
	Parents bool    // make missing directories
	Mode    *uint32 // permissions; nil: those of the file that is replaced, 0644 of a new one
	IfMatch string  // digest the file must have
	Most    int64   // bytes of content
}

// WriteAnswer describes the file.
type WriteAnswer struct {
	File    Entry
	Created bool
}

// Edit asks for replacements in a text, all of them or none, one after the other.
type Edit struct {
	Path    []byte
	Edits   []Replacement
	IfMatch string
	Most    int64 // bytes of the file, before and after
}

// Replacement is one edit: Old must be there exactly once, or with All at least once.
type Replacement struct {
	Old, New []byte
	All      bool
}

// EditAnswer describes the file and what was replaced.
type EditAnswer struct {
	File  Entry
	Edits []Replaced
}

// Replaced says how often an edit was made, and in which line first, as that was before this edit.
type Replaced struct{ Count, Line int }

// Glob asks for files below Path whose path from there matches a pattern.
type Glob struct {
	Path    []byte
	Pattern string
	Limit   int  // of results
	Walk    int  // of entries looked at
	Ignore  bool // what searches leave out, see package search
	ByName  bool // sorted by name, not newest first
}

// Grep asks for the lines of the files below Path that match.
type Grep struct {
	Path          []byte
	Pattern       string // RE2
	Literal       bool   // Pattern is a text
	IgnoreCase    bool
	Include       []string // globs; empty: all files
	Exclude       []string
	Ignore        bool
	Before, After int // lines of context
	NamesOnly     bool
	Limit         int   // of matching lines, or names
	Walk          int   // of entries looked at
	MaxFile       int64 // bytes; what is larger is left out
	MaxTotal      int64 // bytes read
	MaxLine       int   // bytes shown of a line
}

// GrepAnswer is what was found, by file in the order of their paths.
type GrepAnswer struct {
	Files    []Found
	Matches  int // lines
	Searched int // files
	Binary   int // files left out, since they are no text
	Large    int // or larger than MaxFile
	Failed   int // or could not be read
	Cut      string
}

// Found is what was found in a file.
type Found struct {
	Path  []byte // from the place that was searched
	Lines []Line `json:",omitempty"`
}

// Line is a line of a file.
type Line struct {
	Number int
	Match  bool // not context
	Column int  // of the match, in bytes from 1; 0 of context
	Text   []byte
	Cut    bool
}

// List asks for what is in a directory, down to a depth, sorted by name.
type List struct {
	Path  []byte
	Depth int // 1: the directory alone
	Limit int
}

// ListAnswer lists entries with their paths from where the question began.
type ListAnswer struct {
	Entries []Entry
	Cut     string
}

// Stat asks what is at a path.
type Stat struct {
	Path   []byte
	Follow bool  // a link at its end
	Digest int64 // as in Read
}

// Entry describes a file or directory.
type Entry struct {
	Path   []byte `json:",omitempty"`
	Type   string
	Size   int64
	Mode   uint32 // permissions
	Time   time.Time
	Target []byte `json:",omitempty"` // of a link
	Digest string `json:",omitempty"` // sha256: and 64 hexadecimal digits
}

// Types of an Entry.
const (
	TypeFile      = "file"
	TypeDirectory = "directory"
	TypeLink      = "symlink"
	TypeFIFO      = "fifo"
	TypeSocket    = "socket"
	TypeDevice    = "device"
)

// Types lists them.
func Types() []string {
	return []string{TypeFile, TypeDirectory, TypeLink, TypeFIFO, TypeSocket, TypeDevice}
}

// Move renames.
type Move struct {
	From, To  []byte
	Overwrite bool // replace what is there
	Parents   bool // make missing directories
}

// Remove removes.
type Remove struct {
	Path      []byte
	Recursive bool // a directory with what is in it
	Missing   bool // nothing there is no failure
}

// Chmod changes the mode of what is at a path, of a symbolic link that of its target.
type Chmod struct {
	Path []byte
	Mode uint32 // permission bits alone
}

// Prune removes directories in one: all but the newest Keep, and those that were changed longer than Age ago. Zero is no
// bound. Except stays.
type Prune struct {
	Path   []byte
	Except []byte // a name
	Keep   int
	Age    time.Duration
}

// Bounds are those of an archive.
type Bounds struct {
	Bytes   int64 // of all contents
	Entries int
	File    int64 // bytes of one content
}

// Pack asks for a tar archive of a directory's content, of some of it, or of one file.
type Pack struct {
	Path   []byte
	Some   [][]byte // paths from Path, which is a directory: these, and what is in those that are directories
	Bounds Bounds
	// LeaveOut leaves out what may not be read of a directory, and says so in the archive.
	LeaveOut bool `json:",omitempty"`
}

// Unpack makes a directory's content of the tar archive that follows, which may be compressed by gzip: all of
// it or nothing.
type Unpack struct {
	Path         []byte // made if missing
	Bounds       Bounds
	CaseTwins    bool // names that differ in case alone are refused
	OutwardLinks bool // symbolic links that lead out of the directory are not
	Overwrite    bool // replace files that are there
}

// Sweep removes what an archive for a directory has left that was killed while it was unpacked, and nothing else.
type Sweep struct {
	Path []byte // that of the Unpack
}

// Archived describes an archive.
type Archived struct {
	Entries int
	Bytes   int64
	Skipped int // neither file, directory nor link
}

// Failure says why not.
type Failure struct {
	Kind    Kind
	Path    []byte `json:",omitempty"`
	Text    string // what happened
	Hint    string `json:",omitempty"`
	Field   string `json:",omitempty"` // of the request, if that is wrong
	Allowed string `json:",omitempty"`
}

func (f *Failure) Error() string {
	if len(f.Path) > 0 {
		return string(f.Path) + ": " + f.Text
	}
	return f.Text
}

// Kind is what sort of failure one is.
type Kind string

// The kinds.
const (
	NotFound     Kind = "not_found"
	Exists       Kind = "exists"
	IsDirectory  Kind = "is_directory"
	NotDirectory Kind = "not_directory"
	NotRegular   Kind = "not_regular" // a FIFO, socket, device or a file of the kernel's
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
	Broken       Kind = "io_error"
)

// Kinds lists them all.
func Kinds() []Kind {
	return []Kind{
		NotFound, Exists, IsDirectory, NotDirectory, NotRegular, Binary, TooLarge, TooMany, NoMatch, NotUnique, Changed, NotPermitted,
		ReadOnly, NoSpace, NotEmpty, Busy, OtherDisk, BadPath, BadPattern, BadArchive, BadRequest, Broken,
	}
}
