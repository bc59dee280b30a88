// SPDX-License-Identifier: Apache-2.0

package images

import (
	"context"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/files"

	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Commitment describes an image to be made from a session: nil fields are as in the session's image.
type Commitment struct {
	Name       string
	By         string            // who makes it
	Env        map[string]string // added to, or replacing, the existing ones
	WorkingDir *string
	Entrypoint []string
	Cmd        []string
}

// Commit makes an image of a session's root: pack writes an archive of it, within bounds. The archive is not trusted, and is
// imported like any other.
func (s *Store) Commit(ctx context.Context, root *policy.ImageRoot, to *Commitment, pack func(ctx context.Context, b files.Bounds, w io.Writer) error) (Image, error) {
	if err := validName(to.Name); err != nil {
		return Image{}, err
	}
	config, err := s.configOf(root, to)
	if err != nil {
		return Image{}, err
	}
	return s.take(ctx, &incoming{
		name: to.Name, by: to.By,
		fill: func(f *os.File) error {
			return pack(ctx, files.Bounds{Bytes: int64(s.cfg.MaxBytes), Entries: s.cfg.MaxEntries}, f)
		},
		open: func(ctx context.Context, packed, _ *os.File) (*ArchiveImage, error) {
			return committed(ctx, packed, config)
		},
	})
}

// configOf returns the configuration of an image made from another one.
func (s *Store) configOf(root *policy.ImageRoot, to *Commitment) (*ImageConfig, error) {
	c := &ImageConfig{WorkingDir: root.Dir, Cmd: root.Command} // as the session has it, if the image has been removed
	for _, name := range slices.Sorted(maps.Keys(root.Env)) {
		c.Env = append(c.Env, name+"="+root.Env[name])
	}
	if img, err := s.Get(root.Digest); err == nil {
		*c = img.Config
	}
	c.Architecture = runtime.GOARCH
	if err := policy.CheckVariables(to.Env); err != nil {
		return nil, err
	}
	c.Env = slices.DeleteFunc(slices.Clone(c.Env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		_, ok := to.Env[name]
		return ok
	})
	for _, name := range slices.Sorted(maps.Keys(to.Env)) {
		c.Env = append(c.Env, name+"="+to.Env[name])
	}
	if to.WorkingDir != nil {
		if dir := *to.WorkingDir; dir != "/" && !isolation.CleanAbsolute(dir) {
			return nil, fault.Field("working_dir", dir, "an absolute path without . or ..")
		}
		c.WorkingDir = *to.WorkingDir
	}
	if to.Entrypoint != nil {
		c.Entrypoint = to.Entrypoint
	}
	if to.Cmd != nil {
		c.Cmd = to.Cmd
	}
	return c, nil
}
