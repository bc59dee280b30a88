// SPDX-License-Identifier: Apache-2.0

package files

// Snapshot asks for the state of everything in a directory. It comes before the answer as data, which only Changes of the same
// program can read.
type Snapshot struct {
	Path    []byte
	Exclude []string // globs; matching entries and everything below them are left out
	Walk    int      // bound on entries visited; more are a Failure
	Most    int64    // bound on the data in bytes; more is a Failure
}

// SnapshotAnswer describes a snapshot.
type SnapshotAnswer struct {
	Entries int
	Unread  int // directories that could not be read
}

// Changes asks what has changed in a directory since the snapshot that follows, which was taken
// with the same Path and Exclude.
type Changes struct {
	Path    []byte
	Exclude []string
	Include []string // globs; empty: everything
	Walk    int      // as in Snapshot
	Limit   int      // bound on listed changes; all are counted
	MaxSize int64    // bytes; larger files are counted as Large and not listed; 0: no bound
	Digest  int64    // bytes that may be read to digest the listed files; 0: no digests
}

// Diff asks how a root differs from the image below it. Its answer is that of Changes.
type Diff struct {
	Image, Changed []byte // the image, and the upper layer of overlayfs
	Walk           int    // bound on changes visited; more are a Failure
	Limit          int    // as in Changes
}

// Commit asks for a tar archive of a root: the image with its changes. Its answer is that of
// Pack.
type Commit struct {
	Image, Changed []byte // as in Diff
	Bounds         Bounds // of the resulting image; File is ignored
}

// Discard asks to undo all changes to a root, so that it is its image again.
type Discard struct {
	Image, Changed []byte   // as in Diff
	Root           []byte   // where the root is mounted
	Paths          [][]byte // only what is at these paths; empty: everything
	Walk           int      // bound on changes visited; more are a Failure
}

// Discarded counts what was done, by kind of change: a directory with everything in it counts
// once.
type Discarded struct {
	Removed  int // removed, as the image does not have them
	Restored int
}

// ChangesAnswer lists the changes, sorted by path.
type ChangesAnswer struct {
	Changes []Change
	Created int // these count all changes, also those not listed
	Changed int
	Removed int
	Large   int // not listed because they are larger than MaxSize
	Unread  int // directories that could not be read
	Cut     string
}

// Change is a change at one path.
type Change struct {
	What  string
	Entry Entry // for what was removed: its former path, type, size and mode
}

// Kinds of change.
const (
	WasCreated = "created"
	WasChanged = "changed" // content, permissions, or another file of the same name
	WasRemoved = "removed"
)

func (c *ChangesAnswer) ok() bool {
	for _, n := range []int{c.Created, c.Changed, c.Removed, c.Large, c.Unread} {
		if n < 0 {
			return false
		}
	}
	for i := range c.Changes {
		if x := &c.Changes[i]; x.What != WasCreated && x.What != WasChanged && x.What != WasRemoved || !x.Entry.ok() {
			return false
		}
	}
	return isCut(c.Cut) && len(c.Changes) <= c.Created+c.Changed+c.Removed
}
