// SPDX-License-Identifier: Apache-2.0

package api

import "github.com/boxd-dev/boxd/quantity"

// ChangesWith says what of the changes is wanted. Globs are of paths from the workspace; one without a slash is of names.
type ChangesWith struct {
	Include []string       `json:"include,omitempty" max:"100"` // only what has such a name
	Exclude []string       `json:"exclude,omitempty" max:"100"` // not this, nor what is in such a directory, which nobody looks at
	MaxSize *quantity.Size `json:"max_size,omitempty"`          // of a file that is listed; 0, the default, is any
	Limit   int            `json:"limit,omitempty"`             // of changes that are listed; default 1000, at most 20000
	Digest  bool           `json:"digest,omitempty"`            // of the files that are listed, as far as files.max_search goes
}

// Changes is what an execution has done to the workspace, found by a look at all of it before and one after: what was
// made and removed in between is not in it, and what was moved is removed here and created there. Paths are from the workspace,
// in their order.
type Changes struct {
	Created []File        `json:"created"`
	Changed []File        `json:"changed"` // content or permissions, or another file of the same name
	Removed []RemovedFile `json:"removed"`
	Counts  ChangeCounts  `json:"counts"` // of all, whether or not they are listed
	// Truncated says that there are more than the limit; those listed are the first ones by path.
	Truncated  bool `json:"truncated,omitempty"`
	TooLarge   int  `json:"too_large,omitempty"`  // counted and not listed, since they are larger than max_size
	Unreadable int  `json:"unreadable,omitempty"` // directories that the box user cannot read: what is in them is not known
	// Exact says that nothing else ran in the session meanwhile, and the workspace is nobody else's: all of this is the
	// execution's. Otherwise some of it may be of others.
	Exact bool `json:"exact"`
	// Unknown says why nothing is known: the lists are empty then, and mean nothing.
	Unknown string `json:"unknown,omitempty"`
}

// RootDiff asks what the programs of a session have changed of its image. The answer is Changes, with absolute paths; a file
// that was opened for writing and is as it was does not count, if it has at most 64 MiB.
type RootDiff struct {
	Limit int `json:"limit,omitempty"` // of changes that are listed; default 1000, at most 20000
}

// RootDiscard undoes what the programs of a session have changed of its image. What it has done before a problem stays done.
type RootDiscard struct {
	Paths []string `json:"paths,omitempty" max:"1000"` // only what is there, absolute; none: everything
}

// RootDiscarded counts what was undone; a directory with what is in it is one.
type RootDiscarded struct {
	Removed  int `json:"removed"`  // the image does not have them
	Restored int `json:"restored"` // from the image
}

// ArchiveRequest asks for an archive of some of what is in a directory, such as what an execution has made: of all of it, or
// a problem. Directories come with what is in them.
type ArchiveRequest struct {
	Path        string   `json:"path,omitempty"` // of the directory; default /workspace
	PathBase64  string   `json:"path_base64,omitempty"`
	Paths       []string `json:"paths,omitempty" max:"20000"`        // from there
	PathsBase64 []string `json:"paths_base64,omitempty" max:"20000"` // those that are no UTF-8
}

// ChangeCounts counts changes.
type ChangeCounts struct {
	Created int `json:"created"`
	Changed int `json:"changed"`
	Removed int `json:"removed"`
}

// RemovedFile is what was there before.
type RemovedFile struct {
	Path       string `json:"path"`
	PathBase64 string `json:"path_base64,omitempty"`
	Type       string `json:"type"` // as of File
	Size       int64  `json:"size"`
}
