// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"errors"
	"path"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/isolation/files"
)

// job is a file to be searched: one worker gets it and returns one result for it.
type job struct {
	number int // in the order of the walk
	fd     int
	size   int64
	path   string

	found  *files.Found // nil: no match
	hits   int
	binary bool
	failed bool
}

// grepFiles finds matching lines. Several threads read the files; the result does not depend on which
// is faster.
func grepFiles(req *files.Grep) (*files.GrepAnswer, error) {
	m, err := newMatcher(req)
	if err != nil {
		return nil, err
	}
	wanted, err := newFilter(req.Include, req.Exclude)
	if err != nil {
		return nil, err
	}
	g := &grepRun{req: req, m: m, wanted: wanted, stop: make(chan struct{}), answer: &files.GrepAnswer{}}
	dir, err := openDirPath(req.Path)
	if errors.Is(err, unix.ENOTDIR) {
		return g.one()
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	return g.answer, g.search(func() error {
		w := &walk{left: req.Walk, depth: files.MaxDepth, ignore: req.Ignore, visit: g.visit}
		return w.run(dir)
	})
}

// grepRun is one search.
type grepRun struct {
	req    *files.Grep
	m      *matcher
	wanted globFilter
	jobs   chan *job
	stop   chan struct{} // closed when enough has been found
	answer *files.GrepAnswer
	walked walked
	room   int // bytes of the answer used so far
}

// walked are the counts of the walker, apart from those of the collector, which runs
// concurrently.
type walked struct {
	number        int
	total         int64
	large, failed int
	truncated     string
}

// one searches a single file.
func (g *grepRun) one() (*files.GrepAnswer, error) {
	f, st, err := openRegular(unix.AT_FDCWD, string(g.req.Path), unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	f.Close()
	if err != nil {
		return nil, err
	}
	return g.answer, g.search(func() error { return g.send(fd, st.Size, path.Base(string(g.req.Path))) })
}

// search runs a walk, with workers, and collects their results.
func (g *grepRun) search(walk func() error) error {
	n := runtime.GOMAXPROCS(0)
	g.jobs = make(chan *job, 4*n)
	results := make(chan *job, 4*n)
	var workers, walker sync.WaitGroup
	for range n {
		workers.Go(func() { g.work(results) })
	}
	var failed error
	walker.Go(func() {
		failed = walk()
		close(g.jobs)
		workers.Wait()
		close(results)
	})
	g.collect(results)
	walker.Wait()
	w, a := &g.walked, g.answer
	a.Large, a.Failed, a.Cut = w.large, a.Failed+w.failed, cmp.Or(a.Cut, w.truncated)
	if errors.Is(failed, errEnough) {
		a.Cut, failed = cmp.Or(a.Cut, files.CutFiles), nil
	}
	return failed
}

// visit opens a file of the walk for the workers.
func (g *grepRun) visit(dir int, path, name string, kind byte) error {
	if kind != unix.DT_REG || !g.wanted.wants(path) {
		return nil
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		g.walked.failed++
		return nil //nolint:nilerr // not ours to read, and counted
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size == 0 { // files of the kernel are empty too, by their size
		unix.Close(fd)
		return nil //nolint:nilerr // as if it were not there
	}
	return g.send(fd, st.Size, path)
}

func (g *grepRun) send(fd int, size int64, path string) error {
	if size > g.req.MaxFile {
		unix.Close(fd)
		g.walked.large++
		return nil
	}
	if g.walked.total += size; g.walked.total > g.req.MaxTotal {
		unix.Close(fd)
		g.walked.truncated = files.CutBytes
		return errEnough
	}
	select {
	case g.jobs <- &job{number: g.walked.number, fd: fd, size: size, path: path}:
		g.walked.number++
		return nil
	case <-g.stop:
		unix.Close(fd)
		return errEnough
	}
}

// work searches files until there are no more.
func (g *grepRun) work(results chan<- *job) {
	var content, scratch []byte
	for j := range g.jobs {
		if int64(cap(content)) < j.size {
			content = make([]byte, j.size, j.size+j.size/2)
		}
		text, err := readAll(j.fd, content[:j.size])
		unix.Close(j.fd)
		switch {
		case err != nil:
			j.failed = true
		case bytes.IndexByte(text, 0) >= 0:
			j.binary = true
		default:
			scratch = g.find(j, text, scratch)
		}
		results <- j
	}
}

func readAll(fd int, b []byte) ([]byte, error) {
	for n := 0; ; {
		m, err := unix.Read(fd, b[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n += m; m == 0 || n == len(b) {
			return b[:n], nil
		}
	}
}

// find finds the matching lines of a file.
func (g *grepRun) find(j *job, content, scratch []byte) []byte {
	t, scratch := g.m.match(content, scratch)
	s := &shown{g: g, content: content, line: 1}
	for pos := 0; j.hits < g.req.Limit; {
		start, end, column := t.next(pos)
		if start < 0 {
			break
		}
		if j.hits++; g.req.NamesOnly {
			break
		}
		s.add(start, end, column)
		pos = end + 1
	}
	if j.hits > 0 {
		s.after(len(content))
		j.found = &files.Found{Path: []byte(j.path), Lines: s.lines}
	}
	return scratch
}

// shown collects matching lines and their context.
type shown struct {
	g       *grepRun
	content []byte
	lines   []files.Line
	at      int // offset of the line with the number line
	line    int
	from    int // everything before this has been shown
	left    int // lines of context still to be shown after the last match
}

func (s *shown) add(start, end, column int) {
	s.after(start)
	first := start
	for range s.g.req.Before {
		if first <= s.from {
			break
		}
		first = bytes.LastIndexByte(s.content[:first-1], '\n') + 1
	}
	for at := max(first, s.from); at < start; {
		at = s.put(at, false, 0)
	}
	s.put(start, true, column+1)
	s.from, s.left = end+1, s.g.req.After
}

// after shows the lines after the last match, as many as wanted and not beyond an offset.
func (s *shown) after(limit int) {
	for ; s.left > 0 && s.from < limit; s.left-- {
		s.from = s.put(s.from, false, 0)
	}
}

// put shows the line that begins at an offset, and returns the offset of the next one.
func (s *shown) put(at int, match bool, column int) int {
	s.line += bytes.Count(s.content[s.at:at], []byte{'\n'})
	s.at = at
	end, next := len(s.content), len(s.content)
	if i := bytes.IndexByte(s.content[at:], '\n'); i >= 0 {
		end, next = at+i, at+i+1
	}
	l := files.Line{Number: s.line, Match: match, Column: column}
	if end-at > s.g.req.MaxLine {
		end, l.Cut = at+s.g.req.MaxLine, true
	}
	l.Text = bytes.Clone(s.content[at:end])
	s.lines = append(s.lines, l)
	return next
}

// maxFound bounds the bytes of everything shown.
const maxFound = 8 << 20

// collect takes results in the order of the walk, until there are enough.
func (g *grepRun) collect(results <-chan *job) {
	early := map[int]*job{}
	enough := false
	for j := range results {
		early[j.number] = j
		for next := early[g.answer.Searched+g.answer.Binary+g.answer.Failed]; next != nil && !enough; next = early[g.answer.Searched+g.answer.Binary+g.answer.Failed] {
			delete(early, next.number)
			if enough = g.take(next); enough {
				close(g.stop)
			}
		}
	}
}

// take adds what was found in a file, and reports whether that is enough.
func (g *grepRun) take(j *job) bool {
	a := g.answer
	switch {
	case j.binary:
		a.Binary++
	case j.failed:
		a.Failed++
	default:
		a.Searched++
	}
	if j.found == nil {
		return false
	}
	if left := g.req.Limit - a.Matches; j.hits > left {
		j.hits, j.found.Lines = left, firstMatches(j.found.Lines, left)
	}
	if j.hits == 0 && !g.req.NamesOnly || g.req.NamesOnly && a.Matches == g.req.Limit {
		a.Cut = files.CutLines
		return true
	}
	g.room += len(j.found.Path)
	for i := range j.found.Lines {
		g.room += len(j.found.Lines[i].Text) + 32
	}
	if g.room > maxFound {
		a.Cut = files.CutBytes
		return true
	}
	a.Matches += j.hits
	a.Files = append(a.Files, *j.found)
	if a.Matches >= g.req.Limit {
		a.Cut = files.CutLines
		return true
	}
	return false
}

// firstMatches drops everything after the first n matching lines.
func firstMatches(lines []files.Line, n int) []files.Line {
	for i := range lines {
		if lines[i].Match {
			if n--; n < 0 {
				return lines[:i]
			}
		}
	}
	return lines
}
