// SPDX-License-Identifier: Apache-2.0

package files

// Snapshot asks for the state of all that is in a directory. It comes before the answer as data, which only
// Changes of the same program reads.
type Snapshot struct {
	Path    []byte
	Exclude []string // globs; what they name is not looked at, nor is what is in it
	Walk    int      // of entries looked at; more are a Failure
	Most    int64    // bytes of the data, as above
}

// SnapshotAnswer describes a snapshot.
type SnapshotAnswer struct {
	Entries int
	Unread  int // directories that could not be read
}

// Changes asks what is other in a directory than it was in the snapshot that follows, which was taken with the same
// Path and Exclude.
type Changes struct {
	Path    []byte
	Exclude []string
	Include []string // globs; empty: everything
	Walk    int      // as of Snapshot
	Limit   int      // of changes that are listed; all are counted
	MaxSize int64    // bytes; files that have more are counted as Large, and not listed; 0: all are
	Digest  int64    // bytes that may be read for digests of the files that are listed; 0: there are none
}

// Diff asks what is other in a root than in the image below it. Its answer is that of Changes.
type Diff struct {
	Image, Changed []byte // the image, and what overlayfs keeps of the changes
	Walk           int    // of changes looked at; more are a Failure
	Limit          int    // as of Changes
}

// Commit asks for a tar archive of a root, of the image with what is other than there. Its answer is that of Pack.
type Commit struct {
	Image, Changed []byte // as of Diff
	Bounds         Bounds // of the image that it becomes; File is not looked at
}

// Discard asks for a root to become again what its image is.
type Discard struct {
	Image, Changed []byte   // as of Diff
	Root           []byte   // where the root is
	Paths          [][]byte // only what is there; none: everything
	Walk           int      // of changes looked at; more are a Failure
}

// Discarded counts what was done, by what was other: a directory with what is in it is one.
type Discarded struct {
	Removed  int // the image does not have them
	Restored int
}

// ChangesAnswer is what is other, in the order of the paths.
type ChangesAnswer struct {
	Changes []Change
	Created int // of all, those that are not listed too
	Changed int
	Removed int
	Large   int // of them not listed, since they are larger than MaxSize
	Unread  int // directories that could not be read
	Cut     string
}

// Change is one path at which something is other than it was.
type Change struct {
	What  string
	Entry Entry // of what was removed, what was there: path, type, size and mode
}

// What has become of a path.
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
