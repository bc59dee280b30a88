// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/supervisor/sessionfiles"
)

// Maximum depth of packages below a Workspace's skills, and their maximum number, as in LangBot's own runtime.
const (
	packageDepth = 6
	maxPackages  = 1000
)

// packagesIn returns the outermost directories that have a skill document, relative to isolation.Workspace.
func packagesIn(entries []files.Entry) (packages []string) {
	var dirs []string
	for _, e := range entries {
		dir, name := path.Split(strings.TrimPrefix(string(e.Path), isolation.Workspace+"/"))
		dir = strings.TrimSuffix(dir, "/")
		if (name == "SKILL.md" || name == "skill.md") && strings.Count(dir, "/") < packageDepth {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		if !slices.ContainsFunc(packages, func(above string) bool { return above == "" || strings.HasPrefix(dir, above+"/") }) {
			packages = append(packages, dir)
		}
	}
	return packages
}

// packages passes an archive of each package of skills at or below a host directory to take: of the directories with a
// SKILL.md those that are inside no other. As with Pack, no link leads out of root. If root does not exist, the error is
// a fault of that kind, not LangBot's.
func (b *Boxes) packages(ctx context.Context, root string, take func(below string, archive io.Reader) error) (err error) {
	s, stop, err := b.reading(ctx, readingID(), root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	a, _, err := sessionfiles.Do(ctx, s, sessionfiles.BoxUser, &files.Request{Glob: &files.Glob{
		Path: []byte(isolation.Workspace), Pattern: "**/[Ss]*.md", Limit: maxPackages, Walk: s.Config().Files.MaxEntries, ByName: true,
	}}, nil)
	if err != nil || a.List == nil {
		return err
	}
	for _, dir := range packagesIn(a.List.Entries) {
		r, w := io.Pipe()
		packed := make(chan error, 1)
		go func() { // ends with what it packs, or its reader
			_, err := sessionfiles.Pack(ctx, s, &files.Pack{Path: []byte(path.Join(isolation.Workspace, dir))}, w)
			w.CloseWithError(err)
			packed <- err
		}()
		err := take(dir, r)
		_ = r.Close()                                                               // cannot fail
		if failed := <-packed; err == nil && !errors.Is(failed, io.ErrClosedPipe) { // the reader wants no more
			err = failed
		}
		if err != nil {
			return err
		}
	}
	return nil
}
