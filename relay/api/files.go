// SPDX-License-Identifier: Apache-2.0

package api

import "time"

// Requests about files of a session are carried out inside its box, as the box user. A path that is not absolute
// begins at /workspace. Names of files are bytes: one that is no UTF-8 is given as path_base64 instead of path, and
// comes so in answers, beside a path in which U+FFFD stands for what is none.

// FileRead asks for a part of a file: by lines, or by bytes if byte_offset is set.
type FileRead struct {
	Path       string `json:"path,omitempty"`
	PathBase64 string `json:"path_base64,omitempty"`
	Offset     int    `json:"offset,omitempty"`      // the first line, from 1; default 1
	Limit      int    `json:"limit,omitempty"`       // lines; default 2000
	ByteOffset *int64 `json:"byte_offset,omitempty"` // the first byte, from 0
	MaxBytes   int64  `json:"max_bytes,omitempty"`   // default 51200, at most files.max_content
	Encoding   string `json:"encoding,omitempty"`    // "utf-8" (the default: text alone) or "base64"
	Digest     bool   `json:"digest,omitempty"`      // digest the whole file, if it is not larger than files.max_content
}

// FileContent is a part of a file.
type FileContent struct {
	File           File   `json:"file"`
	Content        string `json:"content" show:"never"`
	Encoding       string `json:"encoding"`
	StartLine      int    `json:"start_line,omitempty"` // where lines were asked for and there are some
	EndLine        int    `json:"end_line,omitempty"`
	NextOffset     int    `json:"next_offset,omitempty"` // the next line; 0 at the end, or within a line
	ByteOffset     int64  `json:"byte_offset"`
	NextByteOffset int64  `json:"next_byte_offset"`
	Truncated      bool   `json:"truncated,omitempty"`
	TruncatedBy    string `json:"truncated_by,omitempty"` // "lines" or "bytes"
}

// File describes a file, directory or anything else that has a name.
type File struct {
	Path         string    `json:"path"`
	PathBase64   string    `json:"path_base64,omitempty"`
	Type         string    `json:"type"` // "file", "directory", "symlink", "fifo", "socket" or "device"
	Size         int64     `json:"size"`
	Mode         string    `json:"mode"` // octal, such as "0644"
	ModifiedAt   time.Time `json:"modified_at"`
	Target       string    `json:"target,omitempty"` // of a symlink
	TargetBase64 string    `json:"target_base64,omitempty"`
	Digest       string    `json:"digest,omitempty"` // "sha256:…"

	// The rest is in answers about what is at a path, in lists of a directory, and where a file or directory was made.

	UID   *uint32 `json:"uid,omitempty"`
	GID   *uint32 `json:"gid,omitempty"`
	User  string  `json:"user,omitempty"` // names as in the box's own /etc/passwd and /etc/group
	Group string  `json:"group,omitempty"`

	// Where a symlink leads in the end; left out if that is nowhere, or out of reach.
	Resolved       string `json:"resolved,omitempty"` // absolute, without symlinks
	ResolvedBase64 string `json:"resolved_base64,omitempty"`
	TargetType     string `json:"target_type,omitempty"`
	TargetMode     string `json:"target_mode,omitempty"`

	Xattrs    map[string]string `json:"xattrs,omitempty"`           // if they were asked for: user.*, values in base64
	XattrsCut bool              `json:"xattrs_truncated,omitempty"` // there are more than 64 KiB of them
}

// FileWrite asks for a content to become that of a file.
type FileWrite struct {
	Path       string `json:"path,omitempty"`
	PathBase64 string `json:"path_base64,omitempty"`
	Content    string `json:"content" show:"never"`
	Encoding   string `json:"encoding,omitempty"`    // of content: "utf-8" (the default) or "base64"
	Mode       string `json:"mode,omitempty"`        // "overwrite" (the default, by renaming), "append" or "create"
	NoParents  bool   `json:"no_parents,omitempty"`  // do not make missing directories
	Permission string `json:"permissions,omitempty"` // octal; default those of the file, "0644" of a new one
	IfMatch    string `json:"if_match,omitempty"`    // digest that the file must have

	// The extended attributes of the file whose names begin with XattrsPrefix, which begins with "user.", become those of
	// Xattrs: others with the prefix are removed. Values are in base64.
	XattrsPrefix string            `json:"xattrs_prefix,omitempty"`
	Xattrs       map[string]string `json:"xattrs,omitempty" max:"1000"`
}

// FileMkdir asks for a directory. One that is there is "exists", and anything else there "not_directory".
type FileMkdir struct {
	Path       string `json:"path,omitempty"`
	PathBase64 string `json:"path_base64,omitempty"`
	Mode       string `json:"mode,omitempty"`       // octal, of the directory; default "0755"
	NoParents  bool   `json:"no_parents,omitempty"` // do not make missing directories on the way
	ExistOK    bool   `json:"exist_ok,omitempty"`   // one that is there stays as it is
}

// FileEvent is something that has happened in a watched directory.
type FileEvent struct {
	Event      string   `json:"event"`          // "watching", "create", "write", "remove", "rename", "chmod", "overflow" or "error"
	Path       string   `json:"path,omitempty"` // from the watched directory; "." is that itself
	PathBase64 string   `json:"path_base64,omitempty"`
	From       string   `json:"from,omitempty"` // with "create": the path before, if it was renamed within what is watched
	FromBase64 string   `json:"from_base64,omitempty"`
	Type       string   `json:"type,omitempty"` // as of a File; left out of what is gone and was no directory
	File       *File    `json:"file,omitempty"`
	Problem    *Problem `json:"problem,omitempty"` // with "error", which is the last
}

// FileEventError is the event that says why a watch has ended.
const FileEventError = "error"

// FileWritten describes a file that was written, or a directory that was made.
type FileWritten struct {
	File    File `json:"file"`
	Created bool `json:"created,omitempty"`
}

// FileEdit asks for replacements in a text: all of them, one after the other, or none.
type FileEdit struct {
	Path       string            `json:"path,omitempty"`
	PathBase64 string            `json:"path_base64,omitempty"`
	Edits      []FileReplacement `json:"edits" max:"1000"`
	IfMatch    string            `json:"if_match,omitempty"`
}

// FileReplacement is one edit: old must be in the file exactly once, or with all at least once.
type FileReplacement struct {
	Old string `json:"old" show:"never"`
	New string `json:"new" show:"never"`
	All bool   `json:"all,omitempty"`
}

// FileEdited describes a file that was edited, with what each edit did.
type FileEdited struct {
	File  File           `json:"file"`
	Edits []FileReplaced `json:"edits"`
}

// FileReplaced says how often an edit was made, and in which line first.
type FileReplaced struct {
	Count int `json:"count"`
	Line  int `json:"line"`
}

// FileGlob asks for what has a name that matches a pattern, the newest first.
type FileGlob struct {
	Pattern    string `json:"pattern"` // *, **, ?, [a-z] and {a,b}
	Path       string `json:"path,omitempty"`
	PathBase64 string `json:"path_base64,omitempty"`
	Limit      int    `json:"limit,omitempty"`     // default 100
	NoIgnore   bool   `json:"no_ignore,omitempty"` // also what .gitignore leaves out, and .git, node_modules, dist and the like
	Sort       string `json:"sort,omitempty"`      // "time" (the default) or "name"
}

// FileList asks for what is in a directory, by name.
type FileList struct {
	Path       string `json:"path,omitempty"` // default /workspace
	PathBase64 string `json:"path_base64,omitempty"`
	Depth      int    `json:"depth,omitempty"` // default 1: the directory alone
	Limit      int    `json:"limit,omitempty"` // default 1000
	Xattrs     bool   `json:"xattrs,omitempty"`
}

// FileEntries lists files, with paths from the place that was asked about.
type FileEntries struct {
	Entries   []File `json:"entries"`
	Truncated bool   `json:"truncated,omitempty"`
}

// FileGrep asks for lines that match, in the text files below a path or in one.
type FileGrep struct {
	Pattern    string   `json:"pattern"` // RE2
	Path       string   `json:"path,omitempty"`
	PathBase64 string   `json:"path_base64,omitempty"`
	Literal    bool     `json:"literal,omitempty"` // pattern is a text
	IgnoreCase bool     `json:"ignore_case,omitempty"`
	Include    []string `json:"include,omitempty" max:"100"` // globs; without a slash of names
	Exclude    []string `json:"exclude,omitempty" max:"100"`
	NoIgnore   bool     `json:"no_ignore,omitempty"` // as in FileGlob
	Before     int      `json:"before,omitempty"`    // lines of context
	After      int      `json:"after,omitempty"`
	NamesOnly  bool     `json:"names_only,omitempty"`
	Limit      int      `json:"limit,omitempty"` // of lines, or names; default 200
}

// FileMatches is what was found, by file, in the order of their paths.
type FileMatches struct {
	Files     []FileMatch `json:"files"`
	Matches   int         `json:"matches"`  // lines, or names
	Searched  int         `json:"searched"` // files
	Skipped   int         `json:"skipped"`  // files that are no text, too large or not readable
	Truncated bool        `json:"truncated,omitempty"`
	// TruncatedBy is "lines" (limit), "files" (files.max_entries) or "bytes" (files.max_search, or of the answer).
	TruncatedBy string `json:"truncated_by,omitempty"`
}

// FileMatch is what was found in a file.
type FileMatch struct {
	Path       string     `json:"path"`
	PathBase64 string     `json:"path_base64,omitempty"`
	Lines      []FileLine `json:"lines,omitempty"`
}

// FileLine is a line of a file, of which at most 500 bytes are shown. Bytes that are no UTF-8 become U+FFFD.
type FileLine struct {
	Line   int    `json:"line"`
	Column int    `json:"column,omitempty"` // of the match, in bytes from 1; left out in lines of context
	Text   string `json:"text"`
	Cut    bool   `json:"cut,omitempty"`
}

// FileStat asks what is at a path.
type FileStat struct {
	Path       string `json:"path,omitempty"`
	PathBase64 string `json:"path_base64,omitempty"`
	NoFollow   bool   `json:"no_follow,omitempty"` // of a symbolic link, the link
	Digest     bool   `json:"digest,omitempty"`
	Xattrs     bool   `json:"xattrs,omitempty"` // tell extended attributes (user.*)
}

// FileMove renames a file or directory.
type FileMove struct {
	From       string `json:"from,omitempty"`
	FromBase64 string `json:"from_base64,omitempty"`
	To         string `json:"to,omitempty"`
	ToBase64   string `json:"to_base64,omitempty"`
	Overwrite  bool   `json:"overwrite,omitempty"`
	NoParents  bool   `json:"no_parents,omitempty"`
}

// FileRemove removes a file or directory.
type FileRemove struct {
	Path       string `json:"path,omitempty"`
	PathBase64 string `json:"path_base64,omitempty"`
	Recursive  bool   `json:"recursive,omitempty"`  // a directory with what is in it
	MissingOK  bool   `json:"missing_ok,omitempty"` // nothing there is no mistake
}

// FileChmod changes the mode of a file or directory. Mode is octal: "755".
type FileChmod struct {
	Path       string `json:"path,omitempty"`
	PathBase64 string `json:"path_base64,omitempty"`
	Mode       string `json:"mode"`
}

// FileDone says that a request has been carried out which has nothing to tell.
type FileDone struct {
	OK bool `json:"ok"`
}

// ArchiveDone describes an archive that was unpacked.
type ArchiveDone struct {
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`
}

// FileFailure says what was wrong about a file. Kind is a word such as "not_found", "not_unique" or "binary".
type FileFailure struct {
	Kind       string `json:"kind"`
	Path       string `json:"path,omitempty"`
	PathBase64 string `json:"path_base64,omitempty"`
}
