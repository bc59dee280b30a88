// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/internal/hashchain"
	"github.com/boxd-dev/boxd/quantity"
)

type report struct {
	failed bool
	detail string
}

// open opens the log in a directory, and returns also its reports and its log text.
func open(t testing.TB, dir string, cfg Config) (*Log, *[]report, *bytes.Buffer) {
	t.Helper()
	var reports []report
	var text bytes.Buffer
	l, err := Open(dir, cfg, slog.New(slog.NewTextHandler(&text, nil)), func(failed bool, detail string) { reports = append(reports, report{failed, detail}) })
	if err != nil {
		t.Fatal(err)
	}
	return l, &reports, &text
}

func mustVerify(t testing.TB, dir string, expect *hashchain.Link) *hashchain.Report {
	t.Helper()
	r, err := hashchain.Verify(os.DirFS(filepath.Join(dir, dirName)), expect)
	if err != nil || len(r.Problems) > 0 {
		t.Fatalf("the log is not in order: %v, %+v", err, r)
	}
	return r
}

func lastRecords(t testing.TB, l *Log, n int) []*Record {
	t.Helper()
	list, truncated, err := l.Last(t.Context(), n, func(*Record) bool { return true })
	if err != nil || truncated {
		t.Fatal(truncated, err)
	}
	return list
}

func TestTheChainGoesOnOverRestarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var head hashchain.Link
	for range 3 {
		l, _, text := open(t, dir, DefaultConfig())
		l.Append(&Record{Kind: KindCall, Route: "POST /v1/sessions", What: &What{Argv: []string{"ls", "-l"}, Env: []string{"SECRET"}}})
		head = l.Head()
		l.Close()
		if !strings.Contains(text.String(), "head="+head.String()) {
			t.Errorf("the log does not say the end: %s", text)
		}
	}
	if r := mustVerify(t, dir, &head); r.Records != 6 {
		t.Errorf("%+v", r)
	}
	l, _, _ := open(t, dir, DefaultConfig())
	defer l.Close()
	list := lastRecords(t, l, 2)
	if len(list) != 2 || list[0].Seq != 6 || list[1].Kind != kindStarted || !slices.Equal(list[0].What.Argv, []string{"ls", "-l"}) || list[0].What.Argc != 2 {
		t.Errorf("the last are %+v", list)
	}
	if st, err := os.Stat(filepath.Join(dir, dirName, hashchain.FileName(1))); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", st, err)
	}
}

func TestRotationKeepsTheChain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := DefaultConfig()
	cfg.MaxSize, cfg.MaxFiles = 4*quantity.KiB, 3
	l, _, _ := open(t, dir, cfg)
	for i := range 500 {
		l.Append(&Record{Kind: KindCall, Session: fmt.Sprint("s", i)})
	}
	head := l.Head()
	l.Close()
	r := mustVerify(t, dir, &head)
	if r.Files != 3 || r.First == 1 {
		t.Errorf("%+v", r)
	}
	l, _, _ = open(t, dir, cfg)
	defer l.Close()
	dropped, _, err := l.Last(t.Context(), 1000, func(r *Record) bool { return r.Kind == hashchain.NoteDropped })
	if err != nil || len(dropped) == 0 || dropped[len(dropped)-1].Last != r.First-1 {
		t.Errorf("of what was removed the log says %+v, %v", dropped, err)
	}
	for _, name := range l.files {
		if st, err := os.Stat(filepath.Join(dir, dirName, name)); err != nil || st.Size() > int64(cfg.MaxSize)+1024 {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
}

// Whoever needs room on the disk removes old files by hand, and boxd goes on writing.
func TestOldFilesAreRemovedByHand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := DefaultConfig()
	cfg.MaxSize, cfg.MaxFiles = 4*quantity.KiB, 3
	l, reports, _ := open(t, dir, cfg)
	defer l.Close()
	writeMany := func() {
		for i := range 200 {
			l.Append(&Record{Kind: KindCall, Session: fmt.Sprint("s", i)})
		}
	}
	writeMany()
	for _, name := range l.files[:2] {
		if err := os.Remove(filepath.Join(dir, dirName, name)); err != nil {
			t.Fatal(err)
		}
	}
	writeMany()
	if state := l.State(); state.Trouble != nil || state.Waiting > 0 || state.Lost > 0 || len(*reports) > 0 {
		t.Errorf("%+v, %v", state, *reports)
	}
	mustVerify(t, dir, new(l.Head()))
}

// A record that was incomplete when boxd died is cut off, wherever it ends, and the repair is recorded.
func TestATornEndIsRepairedAndSaid(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _, _ := open(t, dir, DefaultConfig())
	l.Append(&Record{Kind: KindCall, Session: "a"})
	before := l.size
	l.Append(&Record{Kind: KindCall, Session: "b"})
	l.Close()
	path := filepath.Join(dir, dirName, hashchain.FileName(1))
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := before + 1; n < int64(len(data)); n += 7 {
		if err := os.WriteFile(path, data[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		l, _, text := open(t, dir, DefaultConfig())
		list := lastRecords(t, l, 2)
		l.Close()
		if r := mustVerify(t, dir, nil); r.Repairs != 1 || r.Records != 4 {
			t.Fatalf("cut at %d: %+v", n, r)
		}
		if list[0].Kind != hashchain.NoteRepaired || list[0].Seq != 3 || !strings.Contains(list[0].Detail, fmt.Sprintf("%d bytes", n-before)) || !strings.Contains(text.String(), "incomplete last record") {
			t.Fatalf("cut at %d: %+v, %s", n, list[0], text)
		}
	}
}

// A last record that was edited is not accepted as valid, and the edit can still be found afterwards.
func TestAnEditedEndIsSaidAndStays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _, _ := open(t, dir, DefaultConfig())
	l.Append(&Record{Kind: KindCall, Session: "a"})
	l.Append(&Record{Kind: KindCall, Session: "guilty"})
	l.Close()
	path := filepath.Join(dir, dirName, hashchain.FileName(1))
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Replace(data, []byte("guilty"), []byte("nobody"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	l, _, text := open(t, dir, DefaultConfig())
	l.Append(&Record{Kind: KindCall})
	l.Close()
	r, err := hashchain.Verify(os.DirFS(filepath.Join(dir, dirName)), nil)
	if err != nil || len(r.Problems) != 1 || r.Problems[0].Kind != hashchain.Edited || r.Problems[0].Seq != 3 || r.Records != 4 {
		t.Errorf("%v, %+v", err, r)
	}
	if !strings.Contains(text.String(), "was edited") {
		t.Errorf("the log says %s", text)
	}
}

// fillDisk makes the disk full, and returns a function that frees it. A part of each record is still written.
func fillDisk(l *Log) (freeDisk func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.write = func(f *os.File, p []byte, at int64) (int, error) {
		n, _ := f.WriteAt(p[:len(p)/2], at)
		return n, unix.ENOSPC
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.write = (*os.File).WriteAt
	}
}

func TestADiskThatIsFull(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{onErrorRefuse, onErrorContinue} {
		dir := t.TempDir()
		cfg := DefaultConfig()
		cfg.OnError = policy
		l, reports, _ := open(t, dir, cfg)
		if err := l.Admit(false); err != nil {
			t.Fatal(err)
		}
		freeDisk := fillDisk(l)
		l.Append(&Record{Kind: KindCall, Session: "a"})
		err := l.Admit(false)
		if refused := err != nil; refused != (policy == onErrorRefuse) || refused && fault.KindOf(err) != fault.Unavailable {
			t.Errorf("%s: admitted with %v", policy, err)
		}
		if err := l.Admit(true); err != nil {
			t.Errorf("%s: an end was refused: %v", policy, err)
		}
		for range maxPending + 10 {
			l.Append(&Record{Kind: KindCall, Session: "b"})
		}
		if st := l.State(); st.Waiting != maxPending || st.Lost != 11 || st.Trouble == nil || st.Failed == 0 {
			t.Errorf("%s: %+v", policy, st)
		}
		mustVerify(t, dir, nil) // half a record is not left behind
		freeDisk()
		l.retry()
		if st := l.State(); st.Waiting != 0 || st.Lost != 0 || st.Trouble != nil {
			t.Errorf("%s, mended: %+v", policy, st)
		}
		if err := l.Admit(false); err != nil {
			t.Errorf("%s, mended: %v", policy, err)
		}
		if len(*reports) != 2 || !(*reports)[0].failed || (*reports)[1].failed {
			t.Errorf("%s: it said %+v", policy, *reports)
		}
		l.Close()
		if r := mustVerify(t, dir, nil); r.Lost != 11 || r.Records != maxPending+2 {
			t.Errorf("%s: %+v", policy, r)
		}
	}
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := DefaultConfig()
	cfg.MaxSize = minSize
	l, _, _ := open(t, dir, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	var writers, syncer sync.WaitGroup
	syncer.Go(func() { l.Run(ctx) })
	for range 16 {
		writers.Go(func() {
			for range 100 {
				l.Append(&Record{Kind: KindCall})
			}
		})
	}
	writers.Wait()
	cancel()
	syncer.Wait()
	head := l.Head()
	l.Close()
	if r := mustVerify(t, dir, &head); r.Records != 1601 {
		t.Errorf("%+v", r)
	}
}

// Ids in refused calls may have any length. They are cut, so that such a record still fits and few others are lost for it.
func TestIDsThatNobodyCanHaveAreCut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _, _ := open(t, dir, DefaultConfig())
	long, longest := strings.Repeat("\x00", hashchain.MaxLine), strings.Repeat("i", 256)
	l.Append(&Record{Kind: KindCall, Session: long, Owner: long, Process: long, What: &What{Profile: long}})
	l.Append(&Record{Kind: KindCall, Session: longest})
	list := lastRecords(t, l, 2)
	if len(list) != 2 || list[0].Session != long[:256]+"…" || list[1].Session != longest {
		t.Fatalf("%d records", len(list))
	}
	l.Close()
	if r := mustVerify(t, dir, nil); r.Records != 3 || r.Lost != 0 {
		t.Errorf("%+v", r)
	}
	if info, err := os.Stat(filepath.Join(dir, dirName, hashchain.FileName(1))); err != nil || info.Size() > 16<<10 {
		t.Errorf("the file has %v, %v", info, err)
	}
}

// Any client can be refused as often as it likes: that neither fills the log nor goes unrecorded.
func TestCallsOfStrangersAreCounted(t *testing.T) {
	t.Parallel()
	l, _, _ := open(t, t.TempDir(), DefaultConfig())
	const calls = 2000
	uncounted := func() uint64 {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.anonymous
	}
	for i := 0; i < calls || uncounted() == 0; i++ { // a second may be over with the last
		l.AppendAnonymous(&Record{Kind: KindCall, Detail: "refused"})
	}
	l.Append(&Record{Kind: KindCall, Principal: "uid:1", Detail: "refused"})
	list := lastRecords(t, l, calls+2)
	if n := len(list); n < 3 || n > calls/2 || list[1].Detail != "refused" || list[n-1].Principal != "uid:1" {
		t.Fatalf("%d records: %+v", n, list)
	}
	l.mu.Lock()
	l.anonymousAt = time.Time{} // as if a second had passed
	l.mu.Unlock()
	before := uncounted()
	l.AppendAnonymous(&Record{Kind: KindCall, Detail: "refused"})
	if got, want := lastRecords(t, l, 1)[0].Detail, fmt.Sprintf("%d earlier calls have no record; refused", before); before == 0 || got != want {
		t.Errorf("%q, want %q", got, want)
	}
	(*Log)(nil).AppendAnonymous(&Record{})
}

func TestArgvIsWhatTheConfigurationSays(t *testing.T) {
	t.Parallel()
	long := slices.Repeat([]string{strings.Repeat("\x00", 200)}, 2000)
	for _, test := range []struct {
		argv   string
		in     []string
		full   bool
		digest string
	}{
		{argvFull, []string{"a", "b"}, true, ""},
		{argvDigest, []string{"a", "b"}, false, Digest([]string{"a", "b"})},
		{argvNone, []string{"a", "b"}, false, ""},
		{argvFull, long, false, Digest(long)},
	} {
		cfg := DefaultConfig()
		cfg.Argv = test.argv
		r := &Record{What: &What{Argv: test.in, Env: slices.Repeat([]string{strings.Repeat("é", 1000)}, 1000)}}
		w := cfg.shaped(r).What
		if (len(w.Argv) > 0) != test.full || w.SHA256 != test.digest || w.Argc != len(test.in) || len(w.Env) != maxNames {
			t.Errorf("%s: %+v", test.argv, w)
		}
		if len(r.What.Argv) != len(test.in) || len(r.What.Env) != 1000 {
			t.Error("the caller's record was changed")
		}
	}
	if Digest([]string{"a", "b"}) == Digest([]string{"ab"}) || Digest([]string{"a b"}) == Digest([]string{"a", "b"}) {
		t.Error("different commands have one digest")
	}
}

func TestConfigIsHeldToItsBounds(t *testing.T) {
	t.Parallel()
	valid := DefaultConfig()
	if err := valid.Validate(); err != nil {
		t.Error(err)
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.Argv = "some" }, func(c *Config) { c.OnError = "" }, func(c *Config) { c.MaxSize = 1 },
		func(c *Config) { c.MaxSize = 2 * quantity.GiB }, func(c *Config) { c.MaxFiles = 1 }, func(c *Config) { c.MaxFiles = 10001 },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "must be") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// BenchmarkAppend measures what a record costs, while another goroutine syncs the file as in boxd.
func BenchmarkAppend(b *testing.B) {
	l, _, _ := open(b, b.TempDir(), DefaultConfig())
	ctx, cancel := context.WithCancel(b.Context())
	var syncer sync.WaitGroup
	syncer.Go(func() { l.Run(ctx) })
	uid := uint32(1000)
	r := &Record{
		Kind: KindCall, Request: "3f2a", Principal: "uid:1000", UID: &uid, PID: 12, Via: "socket", Route: "POST /v1/sessions/{id}/exec", Session: "work",
		What: &What{Argv: []string{"python3", "-c", "print(6*7)"}, Env: []string{"A", "B"}}, Status: 200, Outcome: "exited", TookMS: 3.2,
	}
	for b.Loop() {
		l.Append(r)
	}
	cancel()
	syncer.Wait()
	l.Close()
}
