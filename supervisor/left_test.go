// SPDX-License-Identifier: Apache-2.0

package supervisor_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// A session is restored if it has a record and a box, and its end has not begun; a damaged record is reported later, by the code
// that restores it.
func TestAnEndedSessionIsNotRestored(t *testing.T) {
	t.Parallel()
	d, dir := openRecord(t)
	boxes := map[string]string{}
	for id, change := range map[string]func(r *supervisor.Record){
		"lives": func(*supervisor.Record) {}, "lost": func(*supervisor.Record) {},
		"ends": func(r *supervisor.Record) { r.Ending = true }, "once": func(r *supervisor.Record) { r.OneShot = true },
	} {
		r := example()
		r.ID, r.Key = id, policy.Key(r.Owner.Name, id)
		change(r)
		if err := d.Write(r); err != nil {
			t.Fatal(err)
		}
		boxes[id] = r.Key
	}
	boxes["damaged"] = policy.Key("uid:7", "damaged")
	if err := os.WriteFile(filepath.Join(dir, boxes["damaged"]+".json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := d.All(func(error) bool { return false })
	if err != nil || len(l.Sessions) != len(boxes) {
		t.Fatalf("l = %+v, err = %v, want no error and len(l.Sessions) == len(boxes)", l, err)
	}
	boxes["nobody"] = policy.Key("uid:7", "nobody")
	for id, box := range boxes {
		if id != "lost" {
			l.Living = append(l.Living, box)
		}
	}
	for id, box := range boxes {
		if got, want := l.Lives(box), id == "lives" || id == "damaged"; got != want {
			t.Errorf("%s is restored: got %v, want %v", id, got, want)
		}
	}
	if _, err := d.All(func(error) bool { return true }); err == nil {
		t.Error("no error for a record that cannot be read now")
	}
}
