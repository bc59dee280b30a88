// SPDX-License-Identifier: Apache-2.0

// Package images stores the images that boxes are made from. They belong to the operator, and every session whose profile allows
// it may use them. An image is an immutable file tree, which the keeper makes in a box of its own, and a record of the image's
// name.
package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/places"
	"github.com/boxd-dev/boxd/isolation"

	"github.com/boxd-dev/boxd/supervisor/driver"

	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Directories of the store, in the state directory.
const (
	storeDir = "images"
	namesDir = "names"
)

// Image is an image of the store.
type Image struct {
	Name    string      `json:"name"`
	Digest  string      `json:"digest"` // "sha256:…": of its manifest, or of its substitute
	Form    string      `json:"form"`   // of its archive
	Tree    string      `json:"tree"`
	Bytes   int64       `json:"bytes"`
	Entries int         `json:"entries"`
	LeftOut int         `json:"left_out,omitempty"` // devices and FIFOs
	Layers  int         `json:"layers"`
	Config  ImageConfig `json:"config"`
	Created time.Time   `json:"created"`
	Used    int         `json:"-"` // number of sessions that use it
}

// Parts are what a store works with. It owns none of them.
type Parts struct {
	StateDir string
	Boxes    *driver.Driver
	Policy   func() *policy.Config // limits of the box in which layers are unpacked
	Changed  func()                // called after a name refers to another image, or to none
	Log      *slog.Logger
	// Life is boxd's lifetime: unused trees are removed under it, whichever request dropped them.
	Life context.Context //nolint:containedctx // never a request's
}

// Store is the store. It is safe for concurrent use.
type Store struct {
	cfg  Config
	in   Parts
	root *os.Root
	// remove removes a tree, independently of the request that released it last.
	remove    func(ctx context.Context, tree string) error
	receiving places.Limit  // of archives being received
	busy      chan struct{} // slot for one import: each has an unpacked copy of its archive on disk
	wakeup    chan struct{} // wakes the remover
	work      sync.WaitGroup
	stop      context.CancelFunc // ends the remover

	mu      sync.Mutex // guards the fields below
	images  map[string]*Image
	leases  map[string]map[string]bool // by tree, of sessions
	holding map[string]string          // by session, the tree
	unused  map[string]bool            // unused trees that still exist
	key     string                     // of the box in which layers are unpacked
}

// Open opens the store, or creates it. Invalid entries are logged and left alone.
func Open(cfg Config, in Parts) (*Store, error) {
	root, err := durable.OpenStore(filepath.Join(in.StateDir, storeDir))
	if err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	s := &Store{
		cfg: cfg, in: in, root: root, remove: in.Boxes.DropTree,
		receiving: places.Limit{All: maxReceiving, Each: maxReceiving / 2, Patience: receivingTimeout, Of: "images are being received", Hint: "try again when one of them is done"},
		busy:      make(chan struct{}, 1), wakeup: make(chan struct{}, 1),
		images: map[string]*Image{}, leases: map[string]map[string]bool{}, holding: map[string]string{}, unused: map[string]bool{},
	}
	err = root.Mkdir(namesDir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err == nil {
		err = s.load()
	}
	if err != nil {
		root.Close()
		return nil, fmt.Errorf("images: %w", err)
	}
	baseCtx, stop := context.WithCancel(in.Life)
	s.stop = stop
	s.work.Go(func() { s.removeUnused(baseCtx) })
	return s, nil
}

// Close closes the store. Imports must have ended. A tree that is not removed yet is left to the next boxd.
func (s *Store) Close() {
	s.stop()
	s.work.Wait()
	s.root.Close()
}

func (s *Store) load() error {
	dir, err := s.root.OpenRoot(namesDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := durable.Recover(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		img := &Image{}
		err := durable.ReadJSON(dir, name, img)
		if err == nil && (durable.NameOf(img.Name) != name || validName(img.Name) != nil || !isolation.ValidTree(img.Tree)) {
			err = errors.New("not the record of that image")
		}
		if err != nil {
			s.in.Log.Error("cannot use an image: its record is damaged", "file", filepath.Join(dir.Name(), name), "error", err)
			continue
		}
		s.images[img.Name] = img
	}
	return nil
}

// validName checks the name of an image, in the form of registries.
func validName(name string) error {
	if name == policy.ImageHost || !policy.ValidImageName(name) || strings.HasPrefix(name, "sha256:") {
		return fault.Field("name", name, "a name such as python:3.12 or registry.example/team/tools:1, other than host")
	}
	return nil
}

// notFound is the error for an unknown image name.
func notFound(name string) error {
	f := fault.Errorf(fault.NotFound, "no image %s", fault.Show(name)).WithHint("list images: boxctl images ls")
	f.Field, f.Value = "image", name
	return f
}

// List returns all images, by name.
func (s *Store) List() []Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Image, 0, len(s.images))
	for _, name := range slices.Sorted(maps.Keys(s.images)) {
		list = append(list, s.showLocked(s.images[name]))
	}
	return list
}

func (s *Store) showLocked(img *Image) Image {
	shown := *img
	shown.Used = len(s.leases[img.Tree])
	return shown
}

// Get returns an image by its name or digest.
func (s *Store) Get(name string) (Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	img := s.findLocked(name)
	if img == nil {
		return Image{}, notFound(name)
	}
	return s.showLocked(img), nil
}

func (s *Store) findLocked(name string) *Image {
	if img := s.images[name]; img != nil {
		return img
	}
	for _, n := range slices.Sorted(maps.Keys(s.images)) {
		if s.images[n].Digest == name {
			return s.images[n]
		}
	}
	return nil
}

// Root returns what a session of an image is made from; nil for the image "host".
func (s *Store) Root(name string) (*policy.ImageRoot, error) {
	if name == policy.ImageHost {
		return nil, nil //nolint:nilnil // the host needs nothing
	}
	img, err := s.Get(name)
	if err != nil {
		names := []string{policy.ImageHost}
		for _, known := range s.List() {
			names = append(names, known.Name)
		}
		return nil, fault.Field("image", name, fault.OneOf(names...)).WithHint("add one: boxctl images pull NAME")
	}
	root := &policy.ImageRoot{Digest: img.Digest, Tree: img.Tree, Env: map[string]string{}}
	for _, kv := range img.Config.Env {
		// The image does not know the home directory of the box user.
		if name, value, ok := strings.Cut(kv, "="); ok && name != "HOME" {
			root.Env[name] = value
		}
	}
	if policy.CheckVariables(root.Env) != nil {
		root.Env = nil
	}
	root.Command = slices.Concat(img.Config.Entrypoint, img.Config.Cmd)
	if dir := img.Config.WorkingDir; dir != "/" && isolation.CleanAbsolute(dir) {
		root.Dir = dir
	}
	return root, nil
}

// Take keeps the tree of a new session's image until Release. If the image was removed since Root, the error is NotFound.
func (s *Store) Take(session string, root *policy.ImageRoot) error {
	if root == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.leases[root.Tree]) == 0 && !s.namedLocked(root.Tree) {
		return notFound(root.Digest)
	}
	s.holdLocked(session, root.Tree)
	return nil
}

// Hold is Take for a session of an earlier boxd, which has the tree even if the image was removed.
func (s *Store) Hold(session string, root *policy.ImageRoot) {
	if root == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holdLocked(session, root.Tree)
}

func (s *Store) holdLocked(session, tree string) {
	if s.leases[tree] == nil {
		s.leases[tree] = map[string]bool{}
	}
	s.leases[tree][session] = true
	s.holding[session] = tree
}

func (s *Store) namedLocked(tree string) bool {
	for _, img := range s.images {
		if img.Tree == tree {
			return true
		}
	}
	return false
}

// Remove removes an image by its name. Sessions that use it keep it.
func (s *Store) Remove(name string) error {
	s.mu.Lock()
	img := s.findLocked(name)
	if img == nil {
		s.mu.Unlock()
		return notFound(name)
	}
	err := s.root.Remove(namesDir + "/" + durable.NameOf(img.Name))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		delete(s.images, img.Name)
		err = nil
	}
	s.mu.Unlock()
	if err != nil {
		return fmt.Errorf("record of image %s: %w", fault.Show(name), err)
	}
	s.in.Changed()
	s.drop(img.Tree)
	return nil
}

// Keys are those of the boxes in which layers are unpacked.
func (s *Store) Keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.key == "" {
		return nil
	}
	return []string{s.key}
}

// enter puts an image into the store, replacing one of the same name.
func (s *Store) enter(img *Image) error {
	s.mu.Lock()
	old := s.images[img.Name]
	dir, err := s.root.OpenRoot(namesDir)
	if err == nil {
		err = durable.SyncJSON(dir, durable.NameOf(img.Name), img)
		dir.Close()
	}
	if err == nil {
		s.images[img.Name] = img
	}
	s.mu.Unlock()
	if err != nil {
		return fmt.Errorf("record of image %s: %w", fault.Show(img.Name), err)
	}
	s.in.Changed()
	if old != nil && old.Tree != img.Tree {
		s.drop(old.Tree)
	}
	return nil
}

// nameOf is the name of an imported image: the requested one, or the longest in the archive.
func nameOf(requested string, given []string) (string, error) {
	name := requested
	if name == "" && len(given) > 0 {
		name = slices.MaxFunc(given, func(a, b string) int { return cmp.Compare(len(a), len(b)) }) // the one with its registry
	}
	if name == "" {
		return "", fault.Field("name", fault.Word("missing"), "a name such as team/tools:1").WithText("the archive has no image name").WithHint("give it a name with --name")
	}
	return name, validName(name)
}
