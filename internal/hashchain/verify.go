// SPDX-License-Identifier: Apache-2.0

package hashchain

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"slices"
)

// Kind is what is wrong with a log.
type Kind string

// The kinds.
const (
	Edited    Kind = "edited"    // a record is not what was written
	Missing   Kind = "missing"   // records are gone
	Reordered Kind = "reordered" // a record is not where it was written
	Repeated  Kind = "repeated"  // a record occurs twice
	Torn      Kind = "torn"      // the last record is incomplete: its writer has died, or the file was cut off
	Truncated Kind = "truncated" // the expected last record does not exist
)

// Problem is one problem, and where it is.
type Problem struct {
	Kind Kind   `json:"kind"`
	Seq  uint64 `json:"seq"`            // number of the record, or of the first of several missing ones
	Last uint64 `json:"last,omitempty"` // the last of several
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
	Text string `json:"text"` // a complete sentence for a person
}

// Report is the result of Verify.
type Report struct {
	Files    int       `json:"files"`
	Records  uint64    `json:"records"` // number of those that are intact
	First    uint64    `json:"first"`   // number of the first record
	Head     string    `json:"head"`    // NUMBER:HASH of the last record; keep it elsewhere to be able to check later that it still exists
	Repairs  int       `json:"repairs"` // how often boxd cut off a record that it died while writing
	Lost     uint64    `json:"lost"`    // number of records that boxd itself reports as not written
	Problems []Problem `json:"problems"`
}

// maxProblems is after how many problems Verify stops.
const maxProblems = 1000

// Note is a record about the log itself.
type Note struct {
	Kind    string `json:"kind"`
	Last    uint64 `json:"last"`    // for "dropped": number of the last record in the file that rotation has removed
	Hash    string `json:"last_at"` // for "dropped": the hash of that record
	Records uint64 `json:"records"` // for "lost"
}

// Kinds of records about the log itself.
const (
	NoteDropped  = "dropped"
	NoteRepaired = "repaired"
	NoteLost     = "lost"
)

// verifier is the state of a Verify.
type verifier struct {
	report    Report
	next      uint64 // number of the record that should follow
	prev      Sum    // hash of the record before that
	known     bool   // whether prev is known
	start     uint64 // number in the name of the first file
	startPrev *Sum   // the previous hash in the record with that number
	dropped   map[uint64]string
	missing   map[uint64]bool // records that may come later
	expect    *Link
	found     bool // the expected link was found
}

// Verify reads a whole log. With expect, the log must reach at least that record.
func Verify(dir fs.FS, expect *Link) (*Report, error) {
	files, err := Files(dir)
	if err != nil {
		return nil, err
	}
	v := &verifier{dropped: map[uint64]string{}, missing: map[uint64]bool{}, expect: expect, report: Report{Problems: []Problem{}}}
	for i, name := range files {
		if err := v.file(dir, name, i == len(files)-1); err != nil {
			return nil, err
		}
	}
	v.finish()
	v.report.Files = len(files)
	return &v.report, nil
}

func (v *verifier) file(dir fs.FS, name string, last bool) error {
	f, err := dir.Open(name)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	if v.next == 0 {
		v.start, v.next = FirstOf(name), FirstOf(name)
		v.known = v.next == 1 // the hash before the first record is zero
	}
	if first := FirstOf(name); first > v.next { // before reading its lines, one of which may be edited
		v.addGap(first, name, 1)
	}
	incomplete := false
	err = Lines(f, func(line *Line) error {
		incomplete = !line.Ended
		if last && incomplete && len(v.report.Problems) < maxProblems {
			return nil
		}
		v.line(name, line)
		return nil
	})
	if incomplete && last {
		v.problem(Problem{Kind: Torn, Seq: v.next, File: name}, "record %d is incomplete: boxd was killed while writing it (the next boxd records this), or the file was truncated", v.next)
	}
	return err
}

// problem records a problem.
func (v *verifier) problem(p Problem, format string, args ...any) {
	if p.Text = fmt.Sprintf(format, args...); len(v.report.Problems) < maxProblems {
		v.report.Problems = append(v.report.Problems, p)
	}
}

// maxGap is how many numbers of missing records are remembered, in case they come later.
const maxGap = 1 << 16

// addGap records that records are missing before one.
func (v *verifier) addGap(to uint64, file string, line int) {
	if to-v.next > maxGap {
		v.problem(Problem{Kind: Missing, Seq: v.next, Last: to - 1, File: file, Line: line}, "records %d to %d are missing before line %d of %s", v.next, to-1, line, file)
	} else {
		for n := v.next; n < to; n++ {
			v.missing[n] = true
		}
	}
	v.next, v.known = to, false
}

func (v *verifier) line(file string, line *Line) {
	p := Problem{Kind: Edited, Seq: v.next, File: file, Line: line.Number}
	if line.Err != nil {
		v.problem(p, "record %d was modified: line %d of %s does not match its hash", v.next, line.Number, file)
		v.next, v.known = v.next+1, false
		return
	}
	v.report.Records++
	link := line.Link
	if v.report.First == 0 || link.Seq < v.report.First {
		v.report.First = link.Seq
	}
	if link.Seq == v.start {
		v.startPrev = &link.Prev
	}
	if v.expect != nil && v.expect.Seq == link.Seq && v.expect.Hash == link.Hash {
		v.found = true
	}
	v.applyNote(line.Text)
	p.Seq = link.Seq
	switch {
	case link.Seq < v.next && v.missing[link.Seq]:
		delete(v.missing, link.Seq)
		p.Kind = Reordered
		v.problem(p, "record %d was moved: it follows record %d, in line %d of %s", link.Seq, v.next-1, line.Number, file)
		return
	case link.Seq < v.next:
		p.Kind = Repeated
		v.problem(p, "record %d is a duplicate, in line %d of %s", link.Seq, line.Number, file)
		return
	case link.Seq > v.next:
		v.addGap(link.Seq, file, line.Number)
	case v.known && link.Prev != v.prev && link.Seq == 1:
		v.problem(p, "record 1 was modified: it has a predecessor")
	case v.known && link.Prev != v.prev:
		p.Seq--
		v.problem(p, "record %d was modified and hashed again: record %d, in line %d of %s, has another hash of it", link.Seq-1, link.Seq, line.Number, file)
	}
	v.next, v.prev, v.known = link.Seq+1, link.Hash, true
	v.report.Head = link.String()
}

// applyNote uses a record about the log itself.
func (v *verifier) applyNote(text []byte) {
	var n Note
	if json.Unmarshal(text, &n) != nil {
		return // not JSON, but sealed all the same
	}
	switch n.Kind {
	case NoteDropped:
		v.dropped[n.Last] = n.Hash
	case NoteRepaired:
		v.report.Repairs++
	case NoteLost:
		v.report.Lost += n.Records
	}
}

func (v *verifier) finish() {
	if removed := v.dropped[v.start-1]; v.start > 1 && (removed == "" || v.startPrev != nil && removed != v.startPrev.String()) {
		v.problem(Problem{Kind: Missing, Seq: 1, Last: v.start - 1}, "records before %d are missing, and their removal is not recorded", v.start)
	}
	missing := slices.Sorted(maps.Keys(v.missing))
	for len(missing) > 0 {
		n := 1
		for n < len(missing) && missing[n] == missing[n-1]+1 {
			n++
		}
		p := Problem{Kind: Missing, Seq: missing[0], Last: missing[n-1]}
		if n == 1 {
			p.Last = 0
			v.problem(p, "record %d is missing", p.Seq)
		} else {
			v.problem(p, "records %d to %d are missing", p.Seq, p.Last)
		}
		missing = missing[n:]
	}
	if v.expect == nil || v.found || v.expect.Seq < v.start {
		return // rotation has removed it, so it cannot be expected any more
	}
	p := Problem{Kind: Truncated, Seq: max(v.next, 1), Last: v.expect.Seq}
	if v.expect.Seq >= v.next {
		v.problem(p, "the log was truncated: it had record %d, and ends with record %d", v.expect.Seq, max(v.next, 1)-1)
		return
	}
	p.Kind, p.Seq, p.Last = Edited, v.expect.Seq, 0
	v.problem(p, "record %d does not match --head: the log was rewritten from there or earlier", v.expect.Seq)
}
