// SPDX-License-Identifier: Apache-2.0

// Drives are directories that sessions read. Each has versions; a version is an immutable file tree. Filling a drive adds a
// version to the existing ones, which are kept by number and age.

package volumes

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/places"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/statedir"
	"github.com/boxd-dev/boxd/quantity"
)

// Directories of the store, beside the scratch directory: one for each principal with the others in it.
const (
	namesDir = "names"
	indexDir = "index"
	treesDir = statedir.StoreTrees
)

// maxStages is how many drives are filled at once: each filling has an archive and its content on disk.
const maxStages = 4

// deliveredStays is how long a version that was delivered is kept, whatever its number, for the session that needs it.
const deliveredStays = 15 * time.Minute

// stageTimeout is how long a filling waits for its turn.
const stageTimeout = time.Minute

// Version is one version of a drive.
type Version struct {
	Number  int       `json:"number"`
	Tree    string    `json:"tree"` // its directory, below the principal's trees
	Digest  string    `json:"digest"`
	Origin  string    `json:"origin,omitempty"` // where it comes from, as far as boxd knows
	Bytes   int64     `json:"bytes"`
	Entries int       `json:"entries"`
	Created time.Time `json:"created"`
	Pushed  time.Time `json:"pushed,omitzero"` // when it was reported as stored elsewhere too
	Targets []Target  `json:"targets,omitempty"`
	// Delivered means that its number was given: a session is about to use it.
	Delivered bool `json:"delivered,omitempty"`

	Held int `json:"-"` // number of sessions that use it
}

// Drive is a drive with its versions, the newest last.
type Drive struct {
	Name         string             `json:"name"`
	Created      time.Time          `json:"created"`
	Last         int                `json:"last"`                    // highest number of any version so far
	KeepVersions *int               `json:"keep_versions,omitempty"` // nil: as configured
	KeepAge      *quantity.Duration `json:"keep_age,omitempty"`      // nil: as configured
	Push         bool               `json:"push,omitempty"`          // no version is removed before it is pushed
	Versions     []Version          `json:"versions"`
}

// driveSpace has the drives of one principal.
type driveSpace struct {
	key    string
	drives map[string]*Drive
	broken bool // some records are unreadable: nothing is swept
}

// Drives is the store. It is safe for concurrent use.
type Drives struct {
	cfg    Config
	log    *slog.Logger
	root   *os.Root
	now    func() time.Time
	stages places.Limit
	wakeup chan struct{} // wakes Run when something may be removable

	mu       sync.Mutex // guards what follows, and the records
	spaces   map[string]*driveSpace
	treeRefs map[string]int // trees, by their path below the store
}

// OpenDrives opens the store in a state directory, or creates it. Invalid entries are logged and left alone.
func OpenDrives(state string, cfg Config, log *slog.Logger) (*Drives, error) {
	root, err := durable.OpenStore(filepath.Join(state, statedir.DriveStore))
	if err != nil {
		return nil, fmt.Errorf("drives: %w", err)
	}
	s := &Drives{
		cfg: cfg, log: log, root: root, now: time.Now, wakeup: make(chan struct{}, 1),
		spaces: map[string]*driveSpace{}, treeRefs: map[string]int{},
		stages: places.Limit{All: maxStages, Each: maxStages / 2, Patience: stageTimeout, Of: "drives are being filled", Hint: "try again when one of them is done"},
	}
	if err := s.load(); err != nil {
		root.Close()
		return nil, fmt.Errorf("drives: %w", err)
	}
	return s, nil
}

// Close closes the store.
func (s *Drives) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spaces = nil // Run may check once more
	s.root.Close()
}

func (s *Drives) load() error {
	entries, err := fs.ReadDir(s.root.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() || e.Name() == durable.Scratch {
			continue
		}
		sp := &driveSpace{key: e.Name(), drives: map[string]*Drive{}}
		if err := s.loadSpace(sp); err != nil {
			sp.broken = true
			s.log.Error("cannot use the drives of an owner: a record is damaged", "directory", e.Name(), "error", err)
		}
		s.spaces[sp.key] = sp
	}
	return nil
}

func (s *Drives) loadSpace(sp *driveSpace) error {
	dir, err := s.root.OpenRoot(sp.key + "/" + namesDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := durable.Recover(dir)
	errs := []error{err}
	for _, name := range names {
		d := &Drive{}
		err := durable.ReadJSON(dir, name, d)
		if err == nil && !d.valid(name) {
			err = errors.New("not the record of a drive")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("record %s: %w", name, err))
			continue
		}
		sp.drives[d.Name] = d
	}
	return errors.Join(errs...)
}

// valid reports whether a record is consistent, and refers to nothing else.
func (d *Drive) valid(file string) bool {
	last := 0
	for i := range d.Versions {
		v := &d.Versions[i]
		if v.Number <= last || v.Number > d.Last || !isolation.ValidTree(v.Tree) || v.Bytes < 0 {
			return false
		}
		last = v.Number
	}
	return isolation.ValidDrive(d.Name) && durable.NameOf(d.Name) == file
}

func treePath(sp *driveSpace, v *Version) string { return path.Join(sp.key, treesDir, v.Tree) }

// driveNotFound returns the error for a drive that does not exist, or is another principal's.
func driveNotFound(name string) error {
	f := fault.Errorf(fault.NotFound, "no drive %s", fault.Show(name)).WithHint("list your drives: boxctl drives ls")
	f.Field, f.Value = "drive", name
	return f
}

// find returns a drive. The lock is held.
func (s *Drives) find(owner, name string) (*driveSpace, *Drive, error) {
	if sp := s.spaces[statedir.OwnerDir(owner)]; sp != nil && sp.drives[name] != nil {
		return sp, sp.drives[name], nil
	}
	return nil, nil, driveNotFound(name)
}

// version returns a version of a drive; 0 is the newest.
func (d *Drive) version(number int) (*Version, error) {
	if n := len(d.Versions); number == 0 && n > 0 {
		return &d.Versions[n-1], nil
	}
	i, found := slices.BinarySearchFunc(d.Versions, number, func(v Version, n int) int { return cmp.Compare(v.Number, n) })
	if !found {
		f := fault.Errorf(fault.NotFound, "drive %s has no version %d", d.Name, number).WithHint("list its versions: boxctl drives show")
		f.Field, f.Value = "version", fmt.Sprint(number)
		return nil, f
	}
	return &d.Versions[i], nil
}

// copied returns a copy of a drive for callers without the lock.
func (s *Drives) copied(sp *driveSpace, d *Drive) Drive {
	c := *d
	c.Versions = slices.Clone(d.Versions)
	for i := range c.Versions {
		c.Versions[i].Held = s.treeRefs[treePath(sp, &c.Versions[i])]
	}
	return c
}

// List lists the drives of a principal, by name.
func (s *Drives) List(owner string) []Drive {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []Drive{}
	if sp := s.spaces[statedir.OwnerDir(owner)]; sp != nil {
		for _, d := range sp.drives {
			list = append(list, s.copied(sp, d))
		}
	}
	slices.SortFunc(list, func(a, b Drive) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Get describes a drive.
func (s *Drives) Get(owner, name string) (Drive, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp, d, err := s.find(owner, name)
	if err != nil {
		return Drive{}, err
	}
	return s.copied(sp, d), nil
}

// RetentionChange changes how a drive is kept; nil leaves a field as it is.
type RetentionChange struct {
	Versions *int
	Age      *quantity.Duration
	Push     *bool
}

// Keep changes how long the versions of a drive are kept.
func (s *Drives) Keep(owner, name string, k RetentionChange) (Drive, error) {
	switch {
	case k.Versions != nil && !validKeep(*k.Versions):
		return Drive{}, fault.Field("keep_versions", *k.Versions, fmt.Sprintf("0 to %d", maxVersions))
	case k.Age != nil && !validAge(*k.Age):
		return Drive{}, fault.Field("keep_age", *k.Age, "0s, or 1s and more")
	}
	d, err := s.change(owner, name, func(d *Drive) error {
		d.KeepVersions, d.KeepAge = cmp.Or(k.Versions, d.KeepVersions), cmp.Or(k.Age, d.KeepAge)
		if k.Push != nil {
			d.Push = *k.Push
		}
		return nil
	})
	s.wakeSweeper()
	return d, err
}

// Pushed records that a version is stored elsewhere too.
func (s *Drives) Pushed(owner, name string, number int) (Drive, error) {
	d, err := s.change(owner, name, func(d *Drive) error {
		v, err := d.version(number)
		if err == nil {
			v.Pushed = s.now().UTC()
		}
		return err
	})
	s.wakeSweeper()
	return d, err
}

// change replaces the record of a drive: all of the change or none.
func (s *Drives) change(owner, name string, do func(d *Drive) error) (Drive, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp, d, err := s.find(owner, name)
	if err != nil {
		return Drive{}, err
	}
	next := s.copied(sp, d)
	if err := do(&next); err != nil {
		return Drive{}, err
	}
	if err := s.write(sp, &next); err != nil {
		return Drive{}, err
	}
	sp.drives[name] = &next
	return s.copied(sp, &next), nil
}

// write writes the record of a drive. The lock is held.
func (s *Drives) write(sp *driveSpace, d *Drive) error {
	dir, err := s.root.OpenRoot(sp.key + "/" + namesDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return durable.SyncJSON(dir, durable.NameOf(d.Name), d)
}
