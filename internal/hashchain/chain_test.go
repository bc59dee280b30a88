// SPDX-License-Identifier: Apache-2.0

package hashchain_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/boxd-dev/boxd/internal/hashchain"
)

// makeLog makes a log of records in files of three, and returns its lines and its last link.
func makeLog(t testing.TB, records int) (lines []string, head hashchain.Link) {
	t.Helper()
	for i := range records {
		line, link, err := hashchain.Seal(head, fmt.Appendf(nil, `{"kind":"call","route":"r%d"}`, i+1))
		if err != nil {
			t.Fatal(err)
		}
		lines, head = append(lines, string(line)), link
	}
	return lines, head
}

const perFile = 3

// asFiles returns the log as files.
func asFiles(lines []string) fstest.MapFS {
	dir := fstest.MapFS{}
	for i := 0; i < len(lines); i += perFile {
		dir[hashchain.FileName(uint64(i+1))] = &fstest.MapFile{Data: []byte(strings.Join(lines[i:min(len(lines), i+perFile)], "")), Mode: 0o600}
	}
	return dir
}

func verify(t testing.TB, dir fstest.MapFS, expect *hashchain.Link) *hashchain.Report {
	t.Helper()
	r, err := hashchain.Verify(dir, expect)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// wantOneProblem checks that a log has only this problem.
func wantOneProblem(t *testing.T, r *hashchain.Report, kind hashchain.Kind, seq, last uint64) {
	t.Helper()
	if len(r.Problems) != 1 {
		t.Fatalf("%d problems, not one: %+v", len(r.Problems), r.Problems)
	}
	if p := r.Problems[0]; p.Kind != kind || p.Seq != seq || p.Last != last || p.Text == "" {
		t.Fatalf("the problem is %+v, want %s of %d to %d", p, kind, seq, last)
	}
}

func TestALogIsWhatWasWritten(t *testing.T) {
	t.Parallel()
	lines, head := makeLog(t, 8)
	r := verify(t, asFiles(lines), &head)
	if len(r.Problems) != 0 || r.Records != 8 || r.Files != 3 || r.First != 1 || r.Head != head.String() {
		t.Errorf("%+v", r)
	}
	link, err := hashchain.ParseLink(r.Head)
	if err != nil || link.Seq != 8 || link.Hash != head.Hash {
		t.Errorf("%+v, %v", link, err)
	}
	if r := verify(t, fstest.MapFS{"other": {Data: []byte("x")}, "audit-1.log": {Data: []byte("x")}}, nil); r.Records != 0 || len(r.Problems) != 0 {
		t.Errorf("an empty log: %+v", r)
	}
}

// A change of any bit is found, and the report names the record it is in.
func TestAnyChangedBitInTheHashChainIsFound(t *testing.T) {
	t.Parallel()
	lines, head := makeLog(t, 5)
	for n, line := range lines {
		for i := range len(line) {
			for bit := range 8 {
				changed := []byte(line)
				changed[i] ^= 1 << bit
				copied := slices.Clone(lines)
				copied[n] = string(changed)
				r := verify(t, asFiles(copied), &head)
				if len(r.Problems) == 0 || r.Problems[0].Seq != uint64(n+1) {
					t.Fatalf("bit %d of byte %d of record %d: %+v", bit, i, n+1, r.Problems)
				}
			}
		}
	}
}

func TestARecordThatIsGoneIsNamed(t *testing.T) {
	t.Parallel()
	lines, head := makeLog(t, 8)
	for n := range lines[:7] {
		dir := asFiles(lines)
		name := hashchain.FileName(uint64(n/perFile*perFile + 1))
		dir[name] = &fstest.MapFile{Data: bytes.Replace(dir[name].Data, []byte(lines[n]), nil, 1), Mode: 0o600}
		r := verify(t, dir, &head)
		wantOneProblem(t, r, hashchain.Missing, uint64(n+1), 0)
	}
	dir := asFiles(lines)
	delete(dir, hashchain.FileName(4))
	wantOneProblem(t, verify(t, dir, nil), hashchain.Missing, 4, 6)
	dir = asFiles(lines)
	delete(dir, hashchain.FileName(1))
	wantOneProblem(t, verify(t, dir, nil), hashchain.Missing, 1, 3)
}

func TestARecordThatWasMovedIsNamed(t *testing.T) {
	t.Parallel()
	lines, head := makeLog(t, 8)
	for n := range lines[:7] {
		copied := slices.Clone(lines)
		copied[n], copied[n+1] = copied[n+1], copied[n]
		wantOneProblem(t, verify(t, asFiles(copied), &head), hashchain.Reordered, uint64(n+1), 0)
	}
	far := slices.Clone(lines)
	far = append(slices.Delete(far, 1, 2), lines[1])
	wantOneProblem(t, verify(t, asFiles(far), &head), hashchain.Reordered, 2, 0)
	duplicated := asFiles(lines)
	second := duplicated[hashchain.FileName(4)]
	second.Data = append(second.Data, lines[2]...)
	wantOneProblem(t, verify(t, duplicated, &head), hashchain.Repeated, 3, 0)
}

// A record that was edited and hashed again is found by the next record, or by the link that was
// kept elsewhere.
func TestARecordWithANewHashIsNamed(t *testing.T) {
	t.Parallel()
	lines, head := makeLog(t, 8)
	for n := range lines {
		link, err := hashchain.Unseal([]byte(strings.TrimSuffix(lines[n], "\n")))
		if err != nil {
			t.Fatal(err)
		}
		forged, _, err := hashchain.Seal(hashchain.Link{Seq: link.Seq - 1, Hash: link.Prev}, []byte(`{"kind":"call","route":"innocent"}`))
		if err != nil {
			t.Fatal(err)
		}
		copied := slices.Clone(lines)
		copied[n] = string(forged)
		wantOneProblem(t, verify(t, asFiles(copied), &head), hashchain.Edited, uint64(n+1), 0)
	}
}

func TestATruncatedHashChainIsDetected(t *testing.T) {
	t.Parallel()
	lines, head := makeLog(t, 8)
	for n := range lines {
		r := verify(t, asFiles(lines[:n]), &head)
		wantOneProblem(t, r, hashchain.Truncated, uint64(n+1), 8)
		if r := verify(t, asFiles(lines[:n]), nil); len(r.Problems) != 0 {
			t.Fatalf("without an expected end %+v", r.Problems)
		}
	}
	all := strings.Join(lines, "")
	for n := 1; n < len(all); n++ {
		r := verify(t, fstest.MapFS{hashchain.FileName(1): {Data: []byte(all[:n])}}, nil)
		if ends := all[n-1] == '\n'; ends != (len(r.Problems) == 0) || !ends && r.Problems[0].Kind != hashchain.Torn {
			t.Fatalf("cut at byte %d: %+v", n, r.Problems)
		}
	}
	if r := verify(t, asFiles(lines), &hashchain.Link{Seq: 3, Hash: head.Hash}); len(r.Problems) != 1 || r.Problems[0].Kind != hashchain.Edited || r.Problems[0].Seq != 3 {
		t.Errorf("another record was expected: %+v", r.Problems)
	}
}

func TestWhatRotationRemovedIsNotMissing(t *testing.T) {
	t.Parallel()
	lines, head := makeLog(t, 6)
	third, err := hashchain.Unseal([]byte(strings.TrimSuffix(lines[2], "\n")))
	if err != nil {
		t.Fatal(err)
	}
	line, last, err := hashchain.Seal(head, fmt.Appendf(nil, `{"kind":"dropped","last":3,"last_at":"%s"}`, third.Hash))
	if err != nil {
		t.Fatal(err)
	}
	dir := asFiles(append(lines, string(line)))
	delete(dir, hashchain.FileName(1))
	if r := verify(t, dir, &last); len(r.Problems) != 0 || r.First != 4 || r.Records != 4 {
		t.Errorf("%+v", r)
	}
	delete(dir, hashchain.FileName(4))
	wantOneProblem(t, verify(t, dir, &last), hashchain.Missing, 1, 6)
}

func FuzzVerify(f *testing.F) {
	lines, _ := makeLog(f, 4)
	f.Add([]byte(strings.Join(lines, "")), []byte(lines[3]))
	f.Add([]byte("\n\n"), []byte(`{"seq":1,"prev":"`))
	f.Add([]byte(lines[1]+lines[0]), []byte(lines[2]+lines[2]))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		r, err := hashchain.Verify(fstest.MapFS{hashchain.FileName(1): {Data: a}, hashchain.FileName(3): {Data: b}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Problems) > 0 {
			return
		}
		// Whatever is accepted is a chain of complete lines.
		var last hashchain.Link
		for line := range bytes.Lines(append(slices.Clone(a), b...)) {
			link, err := hashchain.Unseal(bytes.TrimSuffix(line, []byte("\n")))
			if err != nil || link.Seq != last.Seq+1 || link.Prev != last.Hash {
				t.Fatalf("passed over %q: %v", line, err)
			}
			last = link
		}
	})
}

func FuzzParseLink(f *testing.F) {
	f.Add("1:" + strings.Repeat("0", 64))
	f.Add("01:")
	f.Fuzz(func(t *testing.T, s string) {
		if l, err := hashchain.ParseLink(s); err == nil && l.String() != s {
			t.Errorf("%q is taken for %q", s, l)
		}
	})
}

func TestLinesThatAreTooLong(t *testing.T) {
	t.Parallel()
	lines, _ := makeLog(t, 2)
	r := verify(t, fstest.MapFS{hashchain.FileName(1): {Data: []byte(lines[0] + strings.Repeat("x", 3*hashchain.MaxLine) + "\n")}}, nil)
	if len(r.Problems) != 1 || r.Problems[0].Seq != 2 {
		t.Errorf("%+v", r.Problems)
	}
	if _, _, err := hashchain.Seal(hashchain.Link{}, []byte(`{"a":"`+strings.Repeat("x", hashchain.MaxLine)+`"}`)); err == nil {
		t.Error("a record longer than a line was sealed")
	}
	for _, bad := range []string{"", "{}", "[1,2,3,4]", `{"a":1`, "{\"a\":\n1}"} {
		if _, _, err := hashchain.Seal(hashchain.Link{}, []byte(bad)); err == nil {
			t.Errorf("%q was sealed", bad)
		}
	}
}
