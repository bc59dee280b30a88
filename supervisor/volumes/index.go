// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"path"
	"strings"

	"github.com/boxd-dev/boxd/internal/archive"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
)

// Bounds of what is shown of a version at once.
const (
	maxListed = 1000     // entries
	MinText   = 1024     // bytes
	maxText   = 64 << 10 // bytes
)

// each reads the index of a version, which it holds meanwhile; 0 is the newest.
func (s *Drives) each(owner, name string, number int, f func(*archive.Entry)) (v Version, err error) {
	v, tree, err := s.Take(owner, name, number)
	if err != nil {
		return v, err
	}
	defer s.Release(tree)
	file, err := s.root.Open(path.Join(path.Dir(path.Dir(tree)), indexDir, v.Tree))
	if err != nil {
		return v, fmt.Errorf("index of drive %s: %w", name, err)
	}
	defer file.Close()
	dec := json.NewDecoder(bufio.NewReader(file))
	for {
		var e archive.Entry
		if err := dec.Decode(&e); errors.Is(err, io.EOF) {
			return v, nil
		} else if err != nil {
			return v, fmt.Errorf("index of drive %s: %w", name, err)
		}
		f(&e)
	}
}

// Index lists at most limit entries of a version whose paths begin with prefix, skipping the first offset of them. next is the
// offset of the following ones; 0: there are none.
func (s *Drives) Index(owner, name string, number int, prefix string, offset, limit int) (v Version, list []archive.Entry, next int, err error) {
	switch {
	case limit < 1 || limit > maxListed:
		return v, nil, 0, fault.Field("limit", limit, fmt.Sprintf("1 to %d", maxListed))
	case offset < 0:
		return v, nil, 0, fault.Field("offset", offset, "0 or more")
	}
	list, seen := []archive.Entry{}, 0
	v, err = s.each(owner, name, number, func(e *archive.Entry) {
		if !strings.HasPrefix(e.Path, prefix) {
			return
		}
		switch seen++; {
		case seen <= offset:
		case len(list) < limit:
			list = append(list, *e)
		case next == 0:
			next = offset + limit
		}
	})
	return v, list, next, err
}

// Archive writes the files of a version as a tar archive.
func (s *Drives) Archive(owner, name string, number int, w io.Writer) (Version, error) {
	v, tree, err := s.Take(owner, name, number)
	if err != nil {
		return v, err
	}
	defer s.Release(tree)
	dir, err := s.root.OpenRoot(tree)
	if err != nil {
		return v, err
	}
	defer dir.Close()
	_, err = archive.PackDir(w, dir, "", archive.Bounds{Bytes: math.MaxInt64, Entries: math.MaxInt, File: math.MaxInt64}, archive.PackRules{})
	return v, err
}

// Text describes the content of a version to a model, in at most this many bytes: as many levels of directories as fit, and
// totals for deeper ones. at is where the drive is mounted; "": nowhere. Names are untrusted, so nothing in them can end the
// element they are in.
func (s *Drives) Text(owner, name string, number, maximum int, at string) (v Version, text string, err error) {
	if maximum < MinText || maximum > maxText {
		return v, "", fault.Field("bytes", maximum, fmt.Sprintf("%d to %d", MinText, maxText))
	}
	var all []archive.Entry
	if v, err = s.each(owner, name, number, func(e *archive.Entry) { all = append(all, *e) }); err != nil {
		return v, "", err
	}
	head := fmt.Sprintf("<drive name=%q version=\"%d\" size=%q", name, v.Number, size(v.Bytes))
	if at != "" {
		head += fmt.Sprintf(" location=%q", html.EscapeString(at))
	}
	head += ">\n"
	const closing = "</drive>\n"
	room := maximum - len(head) - len(closing)
	best := ""
	for depth := 1; ; depth++ {
		lines, deeper := level(all, depth)
		body, whole := fit(lines, room)
		if depth == 1 || whole {
			best = body
		}
		if !whole || !deeper {
			return v, head + best + closing, nil
		}
	}
}

// level returns the index down to a depth: directories of that depth show the totals of their content.
func level(all []archive.Entry, depth int) (lines []string, deeper bool) {
	var dir string
	files, bytes := 0, int64(0)
	flush := func() {
		if dir != "" {
			lines = append(lines, fmt.Sprintf("%s/ (%d files, %s)", shown(dir), files, size(bytes)))
		}
		dir, files, bytes = "", 0, 0
	}
	for i := range all {
		e := &all[i]
		n := strings.Count(e.Path, "/") + 1
		if n > depth {
			deeper = true
			if !e.Dir {
				files, bytes = files+1, bytes+e.Size
			}
			continue
		}
		flush()
		switch {
		case !e.Dir:
			lines = append(lines, fmt.Sprintf("%s (%s)", shown(e.Path), size(e.Size)))
		case n == depth:
			dir = e.Path
		}
	}
	flush()
	return lines, deeper
}

// fit joins as many lines as fit, and says whether that was all.
func fit(lines []string, room int) (string, bool) {
	const more = "... and %d more\n"
	var b strings.Builder
	for i, l := range lines {
		omitted := 0
		if i < len(lines)-1 {
			omitted = len(fmt.Sprintf(more, len(lines)-i-1))
		}
		if b.Len()+len(l)+1+omitted > room {
			fmt.Fprintf(&b, more, len(lines)-i)
			return b.String(), false
		}
		b.WriteString(l + "\n")
	}
	return b.String(), true
}

// shown returns a name for a model: on one line, with markup escaped.
func shown(name string) string { return html.EscapeString(strings.Join(strings.Fields(name), " ")) }

// size formats a number of bytes for people.
func size(n int64) string {
	for _, unit := range []struct {
		of   quantity.Size
		text string
	}{{quantity.GiB, "GiB"}, {quantity.MiB, "MiB"}, {quantity.KiB, "KiB"}} {
		if n >= int64(unit.of) {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(unit.of), unit.text)
		}
	}
	return fmt.Sprintf("%d B", n)
}
