// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"path"
	"strings"
	"time"
	"unicode"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/skills"
)

// depth is how many levels below a directory are searched for packages.
const depth = 2

// preview describes the skills in an uploaded archive.
func (s *Skills) preview(ctx context.Context, r *SkillRequest) (any, error) {
	return s.archive(ctx, r, func(st *skills.Stage, c *skills.Choice) (any, error) {
		found, err := st.Candidates(c)
		if err != nil {
			return nil, err
		}
		list := []*Skill{}
		for _, x := range found {
			k, err := r.candidate(&x)
			if err != nil {
				return nil, err
			}
			k.SourcePath, k.PackageRoot = &x.Path, r.root()+"/"+c.Name(x.Path)
			list = append(list, k)
		}
		return map[string]any{"skills": list}, nil
	})
}

// candidate returns a skill as it will be once it is installed.
func (r *SkillRequest) candidate(x *skills.Candidate) (*Skill, error) {
	if len(x.Problems) > 0 {
		return nil, errors.New(x.Problems[0].Text)
	}
	x.Skill.Created, x.Skill.Updated = time.Now(), time.Now()
	return r.skill(&x.Skill), nil
}

// install installs skills of an uploaded archive: all that are chosen, or none.
func (s *Skills) install(ctx context.Context, r *SkillRequest) (any, error) {
	return s.archive(ctx, r, func(st *skills.Stage, c *skills.Choice) (any, error) {
		var err error
		if c.Paths, err = r.list("source_paths"); err != nil {
			return nil, err
		}
		one, _, err := r.optional("source_path", "")
		if err != nil {
			return nil, err
		}
		if one != "" {
			c.Paths = append(c.Paths, one)
		}
		installed, err := st.Install(r.owner(), c)
		if err != nil {
			return nil, s.nameTaken(r, "", err)
		}
		list := []*Skill{}
		for i := range installed {
			list = append(list, r.skill(&installed[i]))
		}
		return map[string]any{"skills": list}, nil
	})
}

// archive runs do on an uploaded archive, which is consumed by that.
func (s *Skills) archive(ctx context.Context, r *SkillRequest, do func(*skills.Stage, *skills.Choice) (any, error)) (any, error) {
	key, err := r.text("file_key")
	if err != nil {
		return nil, refused(err)
	}
	st, err := s.Store.Stage(ctx, r.owner()) // first: with no place, the file is there for another try
	if err != nil {
		return nil, err
	}
	defer st.Close()
	f, ok := r.Files.Take(key)
	if !ok {
		return nil, refuseSkill("no uploaded file has this key")
	}
	defer f.Close()
	head := make([]byte, 2)
	if n, err := f.ReadAt(head, 0); n > 0 && (err != nil || !bytes.Equal(head, []byte("PK"))) {
		return nil, refuseSkill("Uploaded file must be a valid .zip archive")
	}
	filename, _, err := r.optional("filename", "skill.zip")
	if err != nil {
		return nil, refused(err)
	}
	sub, _, err := r.optional("source_subdir", "")
	if err != nil {
		return nil, refused(err)
	}
	if at := path.Clean(strings.Trim(sub, "/")); at == ".." || strings.HasPrefix(at, "../") {
		return nil, refuseSkill("source_subdir must stay within the uploaded archive")
	}
	suffix, _, err := r.optional("target_suffix", "upload")
	if err != nil {
		return nil, refused(err)
	}
	into := func(at string) string { return target(stem(filename), at, suffix) }
	var out any
	if err = st.Fill(f, ""); err == nil {
		out, err = do(st, &skills.Choice{Subdir: sub, Dir: stem(filename), Origin: filename, Rules: skills.Loose, Name: into})
	}
	if err != nil {
		return nil, refused(err)
	}
	return out, nil
}

// target names the directory of a skill from an archive as LangBot's own runtime does, whose skills may have one name then: by the
// file, where in the archive it is, and what LangBot appends.
func target(stem, at, suffix string) string {
	name := stem
	if leaf := path.Base(at); at != "" && leaf != stem {
		name += "-" + leaf
	}
	if suffix != "" {
		name += "-" + suffix
	}
	return dirName(name)
}

// stem makes the beginning of a directory's name of a file name.
func stem(filename string) string {
	base := path.Base(strings.ReplaceAll(filename, `\`, "/"))
	return cmp.Or(strings.Trim(wordOf(strings.TrimSuffix(base, path.Ext(base))), "-_"), "uploaded-skill")
}

// wordOf replaces what the name of a skill cannot have in it.
func wordOf(s string) string {
	return strings.Map(func(c rune) rune {
		if c == '-' || c == '_' || unicode.IsLetter(c) || unicode.IsNumber(c) {
			return c
		}
		return '-'
	}, s)
}

// dirName makes a name that the store takes of a directory's. A long one keeps its beginning, and is told from others by a digest.
func dirName(dir string) string {
	const prefixLen = 50 // characters, of the 64 that a name may have
	name := wordOf(dir)
	if skills.CheckLooseName(name) == nil {
		return name
	}
	sum := sha256.Sum256([]byte(dir))
	letters := []rune(name)
	return string(letters[:min(len(letters), prefixLen)]) + "-" + hex.EncodeToString(sum[:6])
}

// Scan finds the one package at or below a directory.
func (s *Skills) Scan(ctx context.Context, r *SkillRequest) (any, error) {
	p, err := r.text("path")
	if err != nil {
		return nil, refused(err)
	}
	p = path.Clean(strings.TrimSpace(p))
	if below, ok := r.below(p); ok {
		var k *Skill
		err := s.directory(ctx, r, p, below, func(st *skills.Stage, c *skills.Choice) error {
			found, err := st.Candidates(c)
			if err != nil {
				return nothing(p)
			}
			if len(found) > 1 {
				paths := make([]string, len(found))
				for i, x := range found {
					paths[i] = path.Join(p, st.Top(), x.Path)
				}
				return several(p, paths)
			}
			k, err = r.candidate(&found[0])
			if err == nil {
				k.PackageRoot = path.Join(p, st.Top(), found[0].Path)
			}
			return err
		})
		if err != nil {
			return nil, refused(err)
		}
		return k, nil
	}
	name, ok := strings.CutPrefix(p+"/", r.root()+"/")
	if !ok {
		return nil, refuseSkill("scan path must stay within the Workspace skill root")
	}
	if name = strings.TrimSuffix(name, "/"); name == "" {
		var all []string
		for _, k := range s.Store.List(r.owner()) {
			if !k.BuiltIn {
				all = append(all, k.Name) // its directory
			}
		}
		if len(all) > 1 {
			return nil, refused(several(p, all))
		}
		name = strings.Join(all, "")
	}
	k, err := s.at(r, name)
	if err != nil {
		return nil, refused(nothing(p))
	}
	return r.skill(k), nil
}

func nothing(p string) error {
	return refuseSkill("No SKILL.md found in %s or its subdirectories (max depth: %d)", p, depth)
}

func several(p string, found []string) error {
	return refuseSkill("Multiple skill directories found in %s. Please choose a more specific path: %s", p, strings.Join(found, ", "))
}

// own returns the Workspace's own host directory, "" if it is unknown.
func (r *SkillRequest) own() string {
	if r.Work == "" {
		return ""
	}
	return path.Join(r.Work, "tenants", r.Namespace)
}

// below returns the position of a path in the Workspace's own directory. The box checks that it really lies there.
func (r *SkillRequest) below(p string) (string, bool) {
	own := r.own()
	if own == "" || !within(p, own) {
		return "", false
	}
	return strings.TrimPrefix(strings.TrimPrefix(p, own), "/"), true
}

// register makes a skill of a package in a directory. A package below the root of the skills is a skill already.
func (s *Skills) register(ctx context.Context, r *SkillRequest, p string, as *skills.As) (installed skills.Skill, err error) {
	p = path.Clean(p)
	below, ok := r.below(p)
	if !ok {
		if !within(p, r.root()) {
			return installed, refuseSkill("package_root must stay within the Workspace skill root")
		}
		name := strings.TrimPrefix(strings.TrimPrefix(p, r.root()), "/")
		if _, err := s.at(r, name); err != nil {
			return installed, refuseSkill("Directory does not exist: %s", p)
		}
		return installed, refuseSkill("Renaming skills is not supported")
	}
	err = s.directory(ctx, r, p, below, func(st *skills.Stage, c *skills.Choice) error {
		c.Paths, c.As = []string{"."}, as
		found, err := st.Candidates(c)
		if err != nil || len(found) != 1 || found[0].Path != "" || st.Top() != "" {
			return refuseSkill("No SKILL.md found in %s", p)
		}
		list, err := st.Install(r.owner(), c)
		if err == nil {
			installed = list[0]
		}
		return err
	})
	return installed, err
}

var errUnread = errors.New("the reader has gone")

// directory runs do on a copy of a directory of the Workspace, which nothing changes meanwhile.
func (s *Skills) directory(ctx context.Context, r *SkillRequest, p, below string, do func(*skills.Stage, *skills.Choice) error) error {
	st, err := s.Store.Stage(ctx, r.owner())
	if err != nil {
		return err
	}
	defer st.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from, to := io.Pipe()
	packed := make(chan error, 1)
	go func() { // ends with what it packs, or ctx
		err := s.Boxes.pack(ctx, r.own(), below, to)
		to.CloseWithError(err)
		packed <- err
	}()
	err = st.Fill(from, "")
	from.CloseWithError(errUnread)
	cancel() // stops a packer that still runs
	failed := <-packed
	if fault.KindOf(failed) == fault.NotFound && !errors.Is(failed, context.Canceled) {
		return refuseSkill("Directory does not exist: %s", p)
	}
	if failed != nil && !errors.Is(failed, errUnread) && !errors.Is(failed, context.Canceled) {
		return failed
	}
	if err != nil {
		return err
	}
	return do(st, &skills.Choice{Dir: path.Base(p), Origin: p, Rules: skills.Loose})
}
