// SPDX-License-Identifier: Apache-2.0

package skills

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/internal/archive"
	"github.com/boxd-dev/boxd/internal/durable"
	"github.com/boxd-dev/boxd/internal/fault"
)

// Names in the directory of a stage.
const (
	archiveName = "archive"
	contentName = "content"
)

// candidateDepth is how deep below an archive's root skills are searched for.
const candidateDepth = 2

// Stage is an archive being imported: it is unpacked, searched, and installed or dropped.
type Stage struct {
	store   *Store
	release func()
	at      string
	root    string // of the content, relative to the store: the archive's root, or its only directory
	top     string // name of that only directory, "" if there is none
}

// Stage makes room for an archive of an owner. It waits while too many other imports run, of all or of this owner, for a minute at
// most: the error is of kind fault.Exhausted then.
func (s *Store) Stage(ctx context.Context, owner string) (*Stage, error) {
	release, err := s.stages.Enter(ctx, owner)
	if err != nil {
		return nil, err
	}
	at, err := durable.NewScratch(s.root)
	st := &Stage{store: s, release: release, at: at, root: path.Join(at, contentName)}
	if err := errors.Join(err, s.root.Mkdir(st.root, 0o700)); err != nil {
		st.Close()
		return nil, fmt.Errorf("import a skill: %w", err)
	}
	return st, nil
}

// Close drops what was not installed.
func (st *Stage) Close() {
	if err := st.store.root.RemoveAll(st.at); err != nil {
		st.store.log.Warn("cannot clean up after an import", "error", err)
	}
	st.release()
}

// Fill reads the archive, unpacks it, and finds its root. below limits a tar archive to one directory; "": all of it.
func (st *Stage) Fill(content io.Reader, below string) error {
	s := st.store
	f, err := s.root.OpenFile(path.Join(st.at, archiveName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	limit := int64(s.cfg.MaxArchive)
	if _, err := archive.Receive(f, content, limit); err != nil {
		return err
	}
	dir, err := s.root.OpenRoot(st.root)
	if err != nil {
		return err
	}
	defer dir.Close()
	limits := archive.Limits{Archive: limit, Bytes: int64(s.cfg.MaxBytes), File: int64(s.cfg.MaxFile), Entries: s.cfg.MaxEntries}
	if err := archive.Extract(f, dir, below, limits); err != nil {
		return err
	}
	if _, err := s.seal(dir); err != nil { // until then it has the archive's modes
		return err
	}
	entries, err := readDir(dir, ".")
	if err == nil && len(entries) == 1 && entries[0].IsDir() {
		st.top = entries[0].Name()
		st.root = path.Join(st.root, st.top)
	}
	return err
}

// Top returns the archive's only directory, "" if it has not exactly one: then the archive itself is the root.
func (st *Stage) Top() string { return st.top }

// Candidate is a skill found in an archive.
type Candidate struct {
	Path     string // from the root of the archive; "": the root itself
	Skill    Skill
	Problems []Problem // what prevents its installation

	at string // relative to the store
}

// Choice says what to install from an archive.
type Choice struct {
	Subdir string // where in the archive to look, "": everywhere
	// Paths are the candidates to install; empty: the only one there is.
	Paths   []string
	Replace bool   // skills of the same names
	Digest  string // that the skill must have; "": any
	Origin  string // where the archive comes from
	Dir     string // name of its root if the archive gives none
	AnyTop  bool   // the name of the archive's only directory is meaningless, as in a repository's
	Rules   Rules
	As      *As // changes to the one chosen skill; nil: as in its document
	// Name gives a skill another name in the store than its document, from its path in the archive: skills may be called the same
	// then. nil: they have one name.
	Name func(path string) string
}

// As gives an installed skill another name and other texts.
type As struct {
	Name  string
	Texts Texts
}

// Candidates lists the skills of the archive, by path.
func (st *Stage) Candidates(c *Choice) ([]Candidate, error) {
	dir, err := st.store.root.OpenRoot(st.root)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	sub := strings.Trim(c.Subdir, "/")
	if sub = path.Clean(cmp.Or(sub, ".")); sub == ".." || strings.HasPrefix(sub, "../") {
		return nil, fault.Field("subdir", c.Subdir, "source_subdir must stay within the uploaded archive")
	}
	if info, err := dir.Lstat(sub); err != nil || !info.IsDir() {
		f := fault.Errorf(fault.Invalid, "source_subdir does not exist in the uploaded archive: %s", shorten(c.Subdir))
		f.Field, f.Value = "subdir", shorten(c.Subdir)
		return nil, f
	}
	var found []Candidate
	if err := st.scan(dir, sub, sub, c, 0, &found); err != nil {
		return nil, err
	}
	if len(found) == 0 {
		f := fault.Errorf(fault.Invalid, "No SKILL.md found in the archive or its subdirectories (max depth: %d)", candidateDepth).
			WithHint("name the directory of the skill, or one above several skills")
		f.Field = "archive"
		return nil, f
	}
	slices.SortFunc(found, func(a, b Candidate) int { return cmp.Compare(a.Path, b.Path) })
	return found, nil
}

// scan finds packages in a directory and below it; a package contains no other packages.
func (st *Stage) scan(dir *os.Root, at, sub string, c *Choice, depth int, found *[]Candidate) error {
	in, err := dir.OpenRoot(at)
	if err != nil {
		return err
	}
	defer in.Close()
	doc, entry, err := document(in)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		unread := ""
		if err != nil {
			unread = err.Error()
		}
		x, err := st.candidate(in, at, sub, c, doc, unread)
		if x.Skill.Entry = entry; err == nil {
			*found = append(*found, x)
		}
		return err
	}
	if depth == candidateDepth {
		return nil
	}
	entries, err := readDir(in, ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := st.scan(dir, path.Join(at, e.Name()), sub, c, depth+1, found); err != nil {
				return err
			}
		}
	}
	return nil
}

// candidate describes a package. unread says why its document cannot be read.
func (st *Stage) candidate(in *os.Root, at, sub string, c *Choice, doc *manifest, unread string) (Candidate, error) {
	x := Candidate{at: path.Join(st.root, at)}
	if x.Path = strings.TrimPrefix(strings.TrimPrefix(at, sub), "/"); at == sub {
		x.Path = ""
	}
	name := path.Base(at)
	if at == "." {
		if name = cmp.Or(st.top, c.Dir); c.AnyTop {
			name = ""
		}
	}
	if unread != "" {
		x.Skill.Name = name
		x.Problems = []Problem{{Text: ManifestFile + ": " + unread}}
		return x, nil
	}
	w, err := st.store.seal(in)
	if err != nil {
		return x, err
	}
	x.Skill = Skill{Digest: w.digest, Bytes: w.bytes, Entries: w.entries, Origin: c.Origin, Python: python(in), Instructions: doc.Body}
	if c.Rules == Loose {
		x.Skill.Name = cmp.Or(doc.Text(keyName), name)
		x.Problems = c.Rules.check(doc, x.Skill.Name)
	} else {
		x.Skill.Name = doc.Text(keyName)
		x.Problems = c.Rules.check(doc, name)
	}
	x.Skill.setTexts(doc)
	return x, nil
}

// Install makes candidates skills of a principal: all that are chosen, or none.
func (st *Stage) Install(owner string, c *Choice) ([]Skill, error) {
	found, err := st.Candidates(c)
	if err != nil {
		return nil, err
	}
	chosen, err := choose(found, c.Paths)
	if err != nil {
		return nil, err
	}
	if c.Digest != "" && len(chosen) != 1 {
		return nil, fault.Field("digest", shorten(c.Digest), "left out with several skills")
	}
	if c.Digest != "" && chosen[0].Skill.Digest != c.Digest {
		f := fault.Errorf(fault.Conflict, "the digest is %s, not %s", chosen[0].Skill.Digest, shorten(c.Digest)).WithHint("preview it again: the files differ from those expected")
		f.Field, f.Value, f.Allowed = "digest", shorten(c.Digest), chosen[0].Skill.Digest
		return nil, f
	}
	var errs []error
	var list []*incoming
	names := map[string]bool{}
	for _, x := range chosen {
		where := cmp.Or(x.Path, ".") + "/" + ManifestFile
		if err := wrong(where, x.Problems); err != nil {
			errs = append(errs, err)
			continue
		}
		name, change := x.Skill.Name, (func(*os.Root) error)(nil)
		if c.As != nil {
			name, change = c.As.Name, func(dir *os.Root) error { return restate(dir, c.As.Name, &c.As.Texts, c.Rules) }
		}
		if c.Name != nil {
			name = c.Name(x.Path)
		}
		if names[name] && c.Name != nil {
			return nil, fault.Field("select", name, "unique: skills of the archive would have one directory").Of(fault.Conflict)
		}
		if names[name] {
			return nil, fault.Field("select", name, "unique: several skills in the archive have this name")
		}
		names[name] = true
		n, err := st.store.prepare(x.at, name, change)
		if err != nil {
			return nil, err
		}
		n.skill.Origin, n.any = c.Origin, c.Replace
		list = append(list, n)
	}
	if len(errs) > 0 {
		return nil, together(errs)
	}
	return st.store.commit(owner, list)
}

// together joins several refusals.
func together(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	lines := make([]string, len(errs))
	for i, err := range errs {
		lines[i] = err.Error()
	}
	f := fault.Errorf(fault.Invalid, "%s", strings.Join(lines, "; "))
	f.Field = ManifestFile
	return f
}

// choose returns the requested candidates.
func choose(found []Candidate, paths []string) ([]Candidate, error) {
	shown := make([]string, len(found))
	for i, x := range found {
		shown[i] = cmp.Or(x.Path, ".")
	}
	if len(paths) == 0 {
		if len(found) == 1 {
			return found, nil
		}
		f := fault.Errorf(fault.Invalid, "Multiple skills found. Please choose one or more source_paths: %s", strings.Join(shown, ", "))
		f.Field, f.Allowed = "select", strings.Join(shown, ", ")
		return nil, f
	}
	var chosen []Candidate
	for _, p := range paths {
		want := strings.Trim(p, "/")
		if want == "." {
			want = ""
		}
		i := slices.IndexFunc(found, func(x Candidate) bool { return x.Path == want })
		if i < 0 {
			f := fault.Errorf(fault.Invalid, "Invalid source_path %q. Available: %s", shorten(p), strings.Join(shown, ", "))
			f.Field, f.Value, f.Allowed = "select", shorten(p), strings.Join(shown, ", ")
			return nil, f
		}
		if !slices.ContainsFunc(chosen, func(x Candidate) bool { return x.Path == want }) {
			chosen = append(chosen, found[i])
		}
	}
	return chosen, nil
}
