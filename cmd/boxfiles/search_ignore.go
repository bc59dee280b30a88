// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// leftOut returns directories that a search with ignore does not enter: programs generate their content.
func leftOut() []string {
	return []string{".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox", "dist", "build"}
}

// Bounds of a .gitignore; anything beyond them is not used.
const (
	maxIgnoreFile  = 256 << 10
	maxIgnoreRules = 4096
)

// ignoreRule is a line of a .gitignore.
type ignoreRule struct {
	again     bool   // ! : not ignored after all
	directory bool   // matches directories only
	name      string // a plain name, anywhere below; "": use re
	suffix    string // *suffix, anywhere below
	re        *regexp.Regexp
	whole     bool // re matches the path relative to the file's directory, not the name
}

// ignoreRules are those of one directory and of the directories above it.
type ignoreRules struct {
	above *ignoreRules
	dir   string // path of the directory, "" or ending with a slash
	lead  string // if the searched directory is below it: the path from here to that, in the same form
	list  []ignoreRule
}

// ignored reports whether a path is ignored. The last rule that matches decides, and those of a
// directory come after those of the directories above it (gitignore(5)).
func (r *ignoreRules) ignored(p, name string, directory bool) bool {
	for ; r != nil; r = r.above {
		for i := range slices.Backward(r.list) {
			if r.list[i].matches(r.lead+p[len(r.dir):], name, directory) {
				return !r.list[i].again
			}
		}
	}
	return false
}

func (r *ignoreRule) matches(p, name string, directory bool) bool {
	switch {
	case r.directory && !directory:
		return false
	case r.name != "":
		return name == r.name
	case r.suffix != "":
		return strings.HasSuffix(name, r.suffix)
	case r.whole:
		return r.re.MatchString(p)
	}
	return r.re.MatchString(name)
}

// readRules reads the .gitignore of a directory, if it has one.
func readRules(dir int, at string, above *ignoreRules) *ignoreRules {
	f, _, err := openRegular(dir, ".gitignore", unix.O_RDONLY|unix.O_NOFOLLOW)
	if err != nil {
		return above
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxIgnoreFile))
	if err != nil {
		return above
	}
	list := parseRules(string(text))
	if len(list) == 0 {
		return above
	}
	return &ignoreRules{above: above, dir: at, list: list}
}

// maxAbove bounds how many directories above the searched one are examined.
const maxAbove = 64

// rulesAbove returns the rules of the directories above one, up to the top of its repository or
// of its mount. If a program moves the directory meanwhile, it may get rules of other files of
// its own.
func rulesAbove(dir int) *ignoreRules {
	at, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(dir))
	if err != nil {
		return nil
	}
	var list []*ignoreRules // the nearest directory first
	cur, lead := dir, ""
	defer func() {
		if cur != dir {
			unix.Close(cur)
		}
	}()
	for range maxAbove {
		var st unix.Statx_t
		if err := unix.Statx(cur, "", unix.AT_EMPTY_PATH, 0, &st); err != nil || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 || typeAt(cur, ".git") != unix.DT_UNKNOWN {
			break
		}
		up, err := unix.Openat(cur, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			break
		}
		if cur != dir {
			unix.Close(cur)
		}
		cur, lead, at = up, path.Base(at)+"/"+lead, path.Dir(at)
		if r := readRules(up, "", nil); r != nil {
			r.lead = lead
			list = append(list, r)
		}
	}
	var above *ignoreRules
	for _, r := range slices.Backward(list) {
		r.above, above = above, r
	}
	return above
}

func parseRules(text string) []ignoreRule {
	var list []ignoreRule
	for line := range strings.SplitSeq(text, "\n") {
		if len(list) == maxIgnoreRules {
			break
		}
		line = strings.TrimSuffix(line, "\r")
		if !strings.HasSuffix(line, `\ `) {
			line = strings.TrimRight(line, " \t")
		}
		if line == "" || line[0] == '#' {
			continue
		}
		if r, ok := parseRule(line); ok {
			list = append(list, r)
		}
	}
	return list
}

func parseRule(line string) (r ignoreRule, ok bool) {
	line, r.again = strings.CutPrefix(line, "!")
	line, r.directory = strings.CutSuffix(line, "/")
	anchored := strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	if line == "" {
		return r, false
	}
	if !anchored {
		rest, star := strings.CutPrefix(line, "*")
		if strings.ContainsAny(rest, `*?[\`) {
			rest = ""
		}
		switch {
		case rest != "" && star:
			r.suffix = rest
			return r, true
		case rest != "":
			r.name = rest
			return r, true
		}
	}
	r.whole = anchored
	var err error
	r.re, err = compileGlob(strings.NewReplacer("{", `\{`, "}", `\}`).Replace(line)) // braces are literal in a .gitignore
	return r, err == nil
}

// globFilter selects the files of a search by globs: one without a slash matches the name.
type globFilter struct{ include, exclude []globPattern }

type globPattern struct {
	re    *regexp.Regexp
	whole bool
}

func newFilter(include, exclude []string) (f globFilter, err error) {
	if f.include, err = compileGlobs(include); err == nil {
		f.exclude, err = compileGlobs(exclude)
	}
	return f, err
}

func compileGlobs(list []string) ([]globPattern, error) {
	globs := make([]globPattern, 0, len(list))
	for _, text := range list {
		re, err := compileGlob(strings.TrimPrefix(text, "/"))
		if err != nil {
			return nil, err
		}
		globs = append(globs, globPattern{re, strings.Contains(text, "/")})
	}
	return globs, nil
}

func (f *globFilter) wants(p string) bool {
	match := func(g globPattern) bool {
		if g.whole {
			return g.re.MatchString(p)
		}
		return g.re.MatchString(path.Base(p))
	}
	return (len(f.include) == 0 || slices.ContainsFunc(f.include, match)) && !slices.ContainsFunc(f.exclude, match)
}
