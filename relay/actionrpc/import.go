// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"sync"

	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/skills"
)

// Earlier imports the skills that LangBot's own runtime kept in its directory before boxd: those of each Workspace are
// imported into the store once, when LangBot first asks for the list. The directory is not changed.
type Earlier struct {
	Dir string // records which Workspaces were imported; made when it is needed
	Log *slog.Logger

	mu    sync.Mutex      // held during an import
	tried map[string]bool // by this boxd
}

// take imports the skills of a Workspace unless it has done so. A skill that cannot be imported fails nothing; the log names it.
func (e *Earlier) take(ctx context.Context, s *Skills, r *SkillRequest) {
	if e == nil || r.Old == "" {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.tried[r.Namespace] {
		return
	}
	if e.tried == nil {
		e.tried = map[string]bool{}
	}
	e.tried[r.Namespace] = true
	if _, err := os.Lstat(path.Join(e.Dir, r.Namespace)); !errors.Is(err, fs.ErrNotExist) {
		return // imported already, or unknown
	}
	from := path.Join(r.Old, "tenants", r.Namespace)
	imported := 0
	err := s.Boxes.packages(ctx, from, func(below string, archive io.Reader) error {
		installed, err := s.takeOne(ctx, r, path.Join(from, below), below, archive)
		if errors.Is(err, errNotStaged) {
			return err // it would be imported at another time
		}
		if err != nil {
			e.Log.Warn("cannot import a skill from LangBot's directory", "skill", path.Join(from, below), "error", err)
			return nil
		}
		imported += len(installed)
		return nil
	})
	switch {
	case err != nil && (ctx.Err() != nil || errors.Is(err, context.Canceled)): // whoever has asked has gone, or is of an earlier generation
		delete(e.tried, r.Namespace)
		e.Log.Warn("importing skills from LangBot's directory was broken off; trying again when they are listed", "directory", from, "error", err)
		return
	case fault.KindOf(err) == fault.NotFound || fault.KindOf(err) == fault.Invalid: // usually because there is no such directory
	case err != nil:
		e.Log.Warn("cannot import skills from LangBot's directory; trying again when boxd starts", "directory", from, "error", err)
		return
	}
	if imported > 0 {
		e.Log.Info("imported skills from LangBot's directory", "directory", from, "skills", imported)
	}
	if err := e.note(r.Namespace); err != nil {
		e.Log.Warn("cannot record that skills were imported; they are imported again when boxd starts", "error", err)
	}
}

func (e *Earlier) note(namespace string) error {
	if err := os.MkdirAll(e.Dir, 0o700); err != nil {
		return err
	}
	dir, err := os.OpenRoot(e.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return durable.SyncJSON(dir, namespace, struct{}{})
}

// errNotStaged says that the store has no place for an import now.
var errNotStaged = errors.New("not now")

// takeOne makes a skill of a package archive, unless there is one of that directory, which is below that of all skills.
func (s *Skills) takeOne(ctx context.Context, r *SkillRequest, at, below string, archive io.Reader) ([]skills.Skill, error) {
	st, err := s.Store.Stage(ctx, r.owner())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotStaged, err)
	}
	defer st.Close()
	if err := st.Fill(archive, ""); err != nil {
		return nil, err
	}
	c := &skills.Choice{Dir: cmp.Or(path.Base(at), "skill"), Origin: at, Rules: skills.Loose, Paths: []string{"."}}
	c.Name = func(string) string { return dirName(c.Dir) }
	installed, err := st.Install(r.owner(), c)
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Kind == fault.Conflict && f.Field == "name" && below != c.Dir {
		c.Name = func(string) string { return dirName(below) } // directories below others may have one name
		installed, err = st.Install(r.owner(), c)
	}
	return installed, err
}
