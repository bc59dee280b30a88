// SPDX-License-Identifier: Apache-2.0

package images_test

import (
	"errors"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/client/images"
)

// cats returns a file of a session that lives.
func cats(t *testing.T, d *boxtest.Daemon, id, file string) string {
	t.Helper()
	r, err := d.Exec(t.Context(), id, &api.ExecRequest{Argv: []string{"/bin/program", "cat=" + file}})
	if err != nil {
		t.Fatalf("%v\n%s", err, d.Log())
	}
	return r.Stdout
}

// A session keeps the image it was made of, whatever becomes of its name, of boxd and of the keeper; when the last one
// has ended, nothing of the image is left.
func TestASessionKeepsItsImage(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, boxtest.Lasting+"[profiles.default]\nimage = \"now:1\"\n[profiles.host]\n[profiles.locked]\nlocked = [\"image\"]\n[sessions]\ndefault_profile = \"host\"\n")
	d.Warm()
	before := d.Look()
	c := images.Client{Client: d.Client}
	old := imports(t, d, simple(t, "now:1", layer(t, entry{name: "version", content: "old"})).layout(t), "")
	twin := imports(t, d, simple(t, "now:1", layer(t, entry{name: "version", content: "old"})).layout(t), "twin:1")
	if twin.Digest != old.Digest || trees(t, d) != 1 {
		t.Errorf("the same twice: %+v, %d trees", twin, trees(t, d))
	}
	if err := c.Delete(t.Context(), "twin:1"); err != nil || trees(t, d) != 1 {
		t.Errorf("one name of two: %v, %d trees", err, trees(t, d))
	}
	for id, req := range map[string]api.SessionRequest{"named": {Image: new("now:1")}, "profile": {Profile: "default"}, "digest": {Image: &old.Digest}} {
		req.ID = id
		s, _, err := d.Create(t.Context(), &req)
		if err != nil {
			t.Fatalf("%v\n%s", err, d.Log())
		}
		if got := cats(t, d, id, "/version"); got != "old" {
			t.Errorf("%s, %s: %q", id, s.Image, got)
		}
	}
	locked := api.SessionRequest{ID: "locked", Profile: "locked", Image: new("now:1")}
	if _, _, err := d.Create(t.Context(), &locked); status(err) != 403 {
		t.Errorf("a profile that locks its image: %v", err)
	}
	imports(t, d, simple(t, "now:1", layer(t, entry{name: "version", content: "young"})).layout(t), "")
	d.Kill()
	d.Restart()
	if err := c.Delete(t.Context(), "now:1"); err != nil {
		t.Fatal(err)
	}
	if _, err := tries(t.Context(), d.Client, "now:1", "id"); status(err) != 400 {
		t.Errorf("an image that is gone: %v", err)
	}
	for _, id := range []string{"named", "profile", "digest"} {
		if got := cats(t, d, id, "/version"); got != "old" {
			t.Errorf("%s, after its image has gone: %q", id, got)
		}
		if trees(t, d) != 1 {
			t.Errorf("%d trees while %s lives", trees(t, d), id)
		}
		if err := d.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	boxtest.Eventually(t, "no tree is left", func() bool { return trees(t, d) == 0 })
	d.NothingLeft(before)
}

func status(err error) int {
	if e, ok := errors.AsType[*client.Error](err); ok {
		return e.Status
	}
	return 0
}
