// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/relay/api"
)

func newStore(t *testing.T) *snapshotStore {
	t.Helper()
	return storeAt(t, startServer(t))
}

func storeAt(t *testing.T, js jetstream.JetStream) *snapshotStore {
	t.Helper()
	g := aGateway(js, &clock{t: time.Unix(1e9, 0)})
	g.cfg.Snapshots, g.cfg.OwnerSnapshots = 1<<30, 1<<30
	s, err := g.openSnapshots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func stored(owner, name string) *storedSnapshot {
	return &storedSnapshot{FleetSnapshot: api.FleetSnapshot{Owner: owner, Name: name, CreatedAt: time.Now()}, key: claimKey(owner, name)}
}

// left returns the keys of all records, and how many chunks there are.
func (s *snapshotStore) left(t *testing.T) (keys []string, chunks uint64) {
	t.Helper()
	records, uploads, err := s.entries(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range append(records, uploads...) {
		keys = append(keys, entry.Key())
	}
	is, err := s.stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return keys, is.State.Msgs
}

// store stores an archive that no record has yet.
func (s *snapshotStore) store(t *testing.T, r io.Reader, most int64) (*upload, error) {
	t.Helper()
	u, err := s.newUpload(t.Context(), "ci")
	if err != nil {
		t.Fatal(err)
	}
	return u, u.write(t.Context(), r, most)
}

// keeps stores an archive and completes its upload.
func (s *snapshotStore) keeps(t *testing.T) *upload {
	t.Helper()
	u, err := s.store(t, strings.NewReader("some bytes"), 1<<30)
	if err == nil {
		err = u.keep(t.Context(), nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// An archive is the same when it is read again, for sizes around that of a chunk; its removal leaves nothing.
func TestAnArchiveComesBack(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, size := range []int{1, chunkSize, 2 * maxUnacked * chunkSize, 2*maxUnacked*chunkSize + 1} {
		data := make([]byte, size)
		_, _ = rand.Read(data)
		u, err := s.store(t, io.MultiReader(bytes.NewReader(data[:1]), bytes.NewReader(data[1:])), int64(size))
		if err != nil {
			t.Fatal(err)
		}
		if want := (size + chunkSize - 1) / chunkSize; u.Chunks != want || u.Size != int64(size) {
			t.Errorf("%d bytes: %+v, want %d chunks", size, u, want)
		}
		got, err := io.ReadAll(s.read(t.Context(), u.archived))
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes: read %d, %v", size, len(got), err)
		}
		if err := u.drop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if keys, chunks := s.left(t); len(keys) != 0 || chunks != 0 {
			t.Errorf("%d bytes leave %v and %d chunks", size, keys, chunks)
		}
	}
}

// An archive with a missing or a wrong chunk cannot be read to its end.
func TestAnArchiveThatIsDamaged(t *testing.T) {
	t.Parallel()
	js := startServer(t)
	s := storeAt(t, js)
	for what, damage := range map[string]func(subject string) error{
		"changed": func(subject string) error { _, err := js.Publish(t.Context(), subject, []byte("other")); return err },
		"gone":    func(subject string) error { return s.stream.Purge(t.Context(), jetstream.WithPurgeSubject(subject)) },
		"empty":   func(subject string) error { _, err := js.Publish(t.Context(), subject, nil); return err },
	} {
		u, err := s.store(t, bytes.NewReader(make([]byte, 2*chunkSize)), 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		if err := damage(s.chunkSubject(u.ID, "1")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(s.read(t.Context(), u.archived)); fault.KindOf(err) != fault.Conflict || !strings.Contains(err.Error(), "damaged") {
			t.Errorf(`%s: err = %v, want a fault.Conflict error and err containing "damaged"`, what, err)
		}
	}
}

// The reader of an incomplete archive gets the reason, and the stored part can be removed.
func TestAnArchiveThatBreaksOff(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for name, why := range map[string]error{"an error": errors.New("the node has gone"), "one that io.ReadFull has too": io.ErrUnexpectedEOF} {
		u, err := s.store(t, io.MultiReader(bytes.NewReader(make([]byte, chunkSize+1)), errReader{why}), 1<<30)
		if !errors.Is(err, why) {
			t.Errorf("%s: err = %v, want err is %v", name, err, why)
		}
		if err := u.drop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if keys, chunks := s.left(t); len(keys) != 0 || chunks != 0 {
			t.Errorf("%s leaves %v and %d chunks", name, keys, chunks)
		}
	}
	if _, err := s.store(t, bytes.NewReader(make([]byte, 10)), 9); !errors.Is(err, errTooLarge) {
		t.Errorf("too much: err = %v, want err is errTooLarge", err)
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// The incomplete upload of a gateway that has died is removed when it has been idle for an hour; uploads in progress, and archives
// with a record, are not. An upload that was removed fails, and gets no record.
func TestWhatADeadGatewayLeavesIsRemoved(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	kept := stored("ci", "kept")
	known, err := s.store(t, strings.NewReader("some bytes"), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	kept.Archive = known.archived
	if err := s.add(t.Context(), &upload{s: s.archiveStore}, kept); err != nil {
		t.Fatal(err)
	}
	dead, err := s.store(t, strings.NewReader("others"), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if keys, chunks := s.left(t); len(keys) != 3 || chunks != 2 {
		t.Errorf("after a moment there are %v and %d chunks", keys, chunks)
	}
	s.grace = 0
	if err := s.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if keys, chunks := s.left(t); !slices.Equal(keys, []string{kept.key}) || chunks != 1 {
		t.Errorf("after the grace there are %v and %d chunks", keys, chunks)
	}
	if got, err := io.ReadAll(s.read(t.Context(), kept.Archive)); err != nil || string(got) != "some bytes" {
		t.Errorf(`got %q, err = %v, want no error and got == "some bytes"`, got, err)
	}
	if err := dead.renew(t.Context()); !errors.Is(err, errAbandoned) {
		t.Errorf("the removed snapshot: err = %v, want err is errAbandoned", err)
	}
	late, err := s.newUpload(t.Context(), "ci")
	if err != nil {
		t.Fatal(err)
	}
	sweeping := readerFunc(func(p []byte) (int, error) { // another gateway, while this one waits for its node
		return copy(p, "x"), errors.Join(s.sweep(t.Context()), io.EOF)
	})
	if err := late.write(t.Context(), sweeping, 1<<30); !errors.Is(err, errAbandoned) {
		t.Errorf("a snapshot that is removed while it is stored: err = %v, want err is errAbandoned", err)
	}
	s.grace = uploadGrace
	slow, err := s.store(t, strings.NewReader("more"), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	s.grace = 0
	if err := s.sweep(t.Context()); err != nil { // just before it is made known
		t.Fatal(err)
	}
	forgot := false
	err = slow.keep(t.Context(), func(context.Context) error { forgot = true; return nil })
	if !errors.Is(err, errAbandoned) || !forgot {
		t.Errorf("a snapshot that is removed before it is recorded: err = %v, forgot = %v, want err is errAbandoned and forgot == true",
			err, forgot)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// A removal that was interrupted is finished later; if its record has changed meanwhile, nothing is removed.
func TestARemovalIsFinished(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	u := s.keeps(t)
	why := errors.New("it has changed")
	if err := s.remove(t.Context(), func() error { return why }, u.archived); !errors.Is(err, why) {
		t.Errorf("err = %v, want err is %v", err, why)
	}
	if keys, chunks := s.left(t); len(keys) != 1 || chunks != 1 { // it is not known what became of it
		t.Errorf("%v, %d chunks", keys, chunks)
	}
	s.grace = 0
	if err := s.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if keys, chunks := s.left(t); len(keys) != 0 || chunks != 0 {
		t.Errorf("%v, %d chunks", keys, chunks)
	}
}

// Delete markers of records are removed, but no record that was created under the same key since.
func TestMarkersOfRemovedRecordsAreRemoved(t *testing.T) {
	t.Parallel()
	js := startServer(t)
	s := storeAt(t, js)
	for _, name := range []string{"gone", "again", "again"} {
		k := stored("ci", name)
		if err := s.add(t.Context(), &upload{s: s.archiveStore}, k); err != nil {
			t.Fatal(err)
		}
		if err := s.records.Delete(t.Context(), k.key); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.add(t.Context(), &upload{s: s.archiveStore}, stored("ci", "again")); err != nil {
		t.Fatal(err)
	}
	messages := func() uint64 {
		t.Helper()
		stream, err := js.Stream(t.Context(), "KV_"+snapshotBucket)
		if err != nil {
			t.Fatal(err)
		}
		return stream.CachedInfo().State.Msgs
	}
	if err := s.sweep(t.Context()); err != nil || messages() != 2 {
		t.Errorf("after a moment: messages() = %d, err = %v, want no error and messages() == 2", messages(), err)
	}
	s.grace = 0
	if err := s.sweep(t.Context()); err != nil || messages() != 1 {
		t.Errorf("after the grace: messages() = %d, err = %v, want no error and messages() == 1", messages(), err)
	}
	if all, err := s.of(t.Context(), "ci"); err != nil || len(all) != 1 || all[0].Name != "again" {
		t.Errorf(`all = %+v, err = %v, want no error and len(all) == 1 and all[0].Name == "again"`, all, err)
	}

	// A record that is created while its delete marker is about to be removed.
	k := stored("ci", "again")
	if err := s.records.Delete(t.Context(), k.key); err != nil {
		t.Fatal(err)
	}
	old, err := s.oldMarkers(t.Context(), time.Now().Add(time.Minute))
	if err != nil || len(old) != 1 {
		t.Fatalf("old = %v, err = %v, want no error and len(old) == 1", old, err)
	}
	if err := errors.Join(s.add(t.Context(), &upload{s: s.archiveStore}, k), s.purge(t.Context(), old)); err != nil {
		t.Fatal(err)
	}
	if all, err := s.of(t.Context(), "ci"); err != nil || len(all) != 1 {
		t.Errorf("all = %+v, err = %v, want no error and len(all) == 1", all, err)
	}
}

// An archive with two records stays until the second is removed.
func TestAnArchiveOfTwoRecords(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	u := s.keeps(t)
	for _, name := range []string{"one", "two"} {
		k := stored("ci", name)
		k.Archive = u.archived
		if err := s.add(t.Context(), &upload{s: s.archiveStore}, k); err != nil {
			t.Fatal(err)
		}
	}
	for i, name := range []string{"one", "two"} {
		key := claimKey("ci", name)
		if err := s.remove(t.Context(), func() error { return s.records.Delete(t.Context(), key) }, u.archived); err != nil {
			t.Fatal(err)
		}
		if keys, chunks := s.left(t); len(keys) != 1-i || chunks != uint64(1-i) {
			t.Errorf("after %s: %v, %d chunks", name, keys, chunks)
		}
	}
}

// Parts that a snapshot lacks make it fail, or are listed in its answer, up to a limit.
func TestWhatASnapshotLacksIsBounded(t *testing.T) {
	t.Parallel()
	l := &lacking{session: "s"}
	if err := l.add("a FIFO"); fault.KindOf(err) != fault.Conflict {
		t.Errorf("err = %v, want a fault.Conflict error", err)
	}
	l.may = true
	for range maxLacking + 2 {
		if err := l.add(strings.Repeat("ä", 1000)); err != nil {
			t.Error(err)
		}
	}
	if list := l.list(); len(list) != maxLacking+1 || list[maxLacking] != "and 2 more" || len(list[0]) > maxLackingText || !utf8.ValidString(list[0]) {
		t.Errorf(`len(list) = %d, list[len(list)-1] = %q, want len(list) == maxLacking + 1 and list[maxLacking] == "and 2 more" and len(list[0]) <= maxLackingText and utf8.ValidString(list[0])`,
			len(list), list[len(list)-1])
	}
}

// Of two snapshots of the same name the first wins, and an owner gets no more than its share, however many are made at a time.
func TestSnapshotsAreAddedOnce(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.perOwner = 100
	add := func(owner, name string, size int64) error {
		k := stored(owner, name)
		k.Size = size
		return s.add(t.Context(), &upload{s: s.archiveStore}, k)
	}
	if err := add("ci", "one", 60); err != nil {
		t.Fatal(err)
	}
	if err := add("ci", "one", 1); fault.KindOf(err) != fault.Conflict {
		t.Errorf("the same name: err = %v, want a fault.Conflict error", err)
	}
	if err := add("ci", "two", 41); fault.KindOf(err) != fault.Exhausted {
		t.Errorf("more than the share: %v", err)
	}
	if err := errors.Join(add("other", "one", 60), add("ci", "two", 40)); err != nil {
		t.Error(err)
	}
	if _, err := s.room(t.Context(), "ci", "three", nil); fault.KindOf(err) != fault.Exhausted {
		t.Errorf("nothing is left: err = %v, want a fault.Exhausted error", err)
	}
	all, err := s.of(t.Context(), "ci")
	if err != nil || len(all) != 2 || all[0].Name != "one" || all[1].Name != "two" {
		t.Errorf(`all = %+v, err = %v, want no error and len(all) == 2 and all[0].Name == "one" and all[1].Name == "two"`,
			all, err)
	}
}

func TestNamesOfSnapshots(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 2, 3, 4, 5, 6, 7e6, time.FixedZone("", 3600))
	for id, want := range map[string]string{"build": "build", "a/b c": "a-b-c", "../x": "x", "ä": "session", strings.Repeat("x", 200): strings.Repeat("x", 100)} {
		if got := nameFor(id, at); got != want+"-20260203T030506.007Z" || !snapshotName.MatchString(got) {
			t.Errorf(`%q: got %q, want got == want + "-20260203T030506.007Z" and snapshotName.MatchString(got)`,
				id, got)
		}
	}
}

// Of two snapshots of an owner that exceed its limit together, at most one is made, even if they are stored at the same time; so
// with skills.
func TestTwoUploadsAtATimeStayWithinTheLimit(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.perOwner = 15
	ups := map[string]*upload{}
	for _, name := range []string{"a", "b"} {
		u, err := s.store(t, strings.NewReader("ten bytes."), 15)
		if err != nil {
			t.Fatal(err)
		}
		ups[name] = u
	}
	other, err := s.newUpload(t.Context(), "other")
	if err == nil {
		err = other.write(t.Context(), strings.NewReader("ten bytes."), 15)
	}
	if err != nil {
		t.Fatal(err)
	}
	add := func(name string) error {
		k := stored("ci", name)
		k.Archive, k.Size = ups[name].archived, ups[name].Size
		return s.add(t.Context(), ups[name], k)
	}
	skills := &skillStore{s.archiveStore, s.perOwner}
	fits := func(name string) error {
		k := skillOf("ci", name, "1")
		k.Archive = ups[name].archived
		return skills.fits(t.Context(), ups[name], []*storedSkill{k}, "")
	}
	for name := range ups {
		if err := add(name); fault.KindOf(err) != fault.Exhausted {
			t.Errorf("snapshot %s, beside another: err = %v, want a fault.Exhausted error", name, err)
		}
		if err := fits(name); fault.KindOf(err) != fault.Exhausted {
			t.Errorf("skill %s, beside another: err = %v, want a fault.Exhausted error", name, err)
		}
	}
	if err := ups["a"].drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := fits("b"); err != nil {
		t.Errorf("the other snapshot was removed: %v", err)
	}
	if err := add("b"); err != nil {
		t.Errorf("the other snapshot was removed: %v", err)
	}
	late, err := s.store(t, strings.NewReader("five."), 15) // b is a snapshot now, and still an upload: it counts once
	if err != nil {
		t.Fatal(err)
	}
	ups["late"] = late
	if err := add("late"); err != nil {
		t.Error(err)
	}
}
