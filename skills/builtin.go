// SPDX-License-Identifier: Apache-2.0

package skills

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/boxd-dev/boxd/internal/durable"
)

// ours are the skills that come with boxd, by name.
//
//go:embed builtin
var ours embed.FS

// installAllBuiltIn makes sure that the skills of this boxd are in the store.
func (s *Store) installAllBuiltIn() error {
	dirs, err := ours.ReadDir("builtin")
	if err != nil {
		return err
	}
	for _, d := range dirs {
		if err := s.installBuiltIn(d.Name()); err != nil {
			return fmt.Errorf("skill %s: %w", d.Name(), err)
		}
	}
	return nil
}

func (s *Store) installBuiltIn(name string) error {
	at, err := durable.NewScratch(s.root)
	if err != nil {
		return err
	}
	defer func() { _ = s.root.RemoveAll(at) }() // as in build
	n, err := s.prepare(at, name, func(dir *os.Root) error { return copyIn(dir, path.Join("builtin", name)) })
	if err != nil {
		return err
	}
	if sp := s.spaces[builtinKey]; sp != nil && sp.skills[name] != nil && sp.skills[name].Digest == n.skill.Digest {
		return nil
	}
	n.any = true
	_, err = s.commitTo(builtinKey, "boxd", []*incoming{n})
	return err
}

func copyIn(dir *os.Root, from string) error {
	return fs.WalkDir(ours, from, func(name string, e fs.DirEntry, err error) error {
		rest := strings.TrimPrefix(strings.TrimPrefix(name, from), "/")
		switch {
		case err != nil || rest == "":
			return err
		case e.IsDir():
			return dir.Mkdir(rest, 0o755)
		}
		data, err := ours.ReadFile(name)
		return errors.Join(err, replaceFile(dir, rest, data, strings.HasPrefix(rest, "scripts/")))
	})
}
