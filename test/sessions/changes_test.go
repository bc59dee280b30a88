// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// watched returns an execution of a shell line that asks for its changes.
func watched(line string, with *api.ChangesWith) api.ExecRequest {
	req := lasting(line)
	req.Changes, req.ChangesWith = true, with
	return req
}

// paths lists changes, each path prefixed with a sign for its kind.
func paths(t *testing.T, c *api.Changes) []string {
	t.Helper()
	if c == nil {
		t.Fatal("the result has no changes")
	}
	if c.Unknown != "" {
		t.Fatalf(`unknown: c.Unknown = %s, want ""`, c.Unknown)
	}
	list := []string{}
	for _, f := range c.Created {
		list = append(list, "+"+f.Path)
	}
	for _, f := range c.Changed {
		list = append(list, "~"+f.Path)
	}
	for _, f := range c.Removed {
		list = append(list, "-"+f.Path)
	}
	return list
}

// namesIn lists the names in an archive.
func namesIn(t *testing.T, archive io.ReadCloser) (names []string) {
	t.Helper()
	defer archive.Close()
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
}

func TestAnExecutionTellsWhatItHasChanged(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.Sh(t, "s", "mkdir -p keep secret && echo one >keep/a && echo old >b && echo x >gone && echo y >secret/y && printf '\\303\\050' >bad")
	r := d.Result(t, "s", watched("echo two >>keep/a; rm gone; mkdir out; echo report >out/r.txt; ln -s out/r.txt last; touch \"$(printf 'caf\\351')\"; echo tmp >t; rm t; echo done >/tmp/x", &api.ChangesWith{Digest: true}))
	want := []string{"+caf�", "+last", "+out", "+out/r.txt", "~keep/a", "-gone"}
	if got := paths(t, r.Changes); !slices.Equal(got, want) || r.Status != "exited" {
		t.Fatalf("%s: %q, want %q", boxtest.Show(r), got, want)
	}
	c := r.Changes
	if c.Counts != (api.ChangeCounts{Created: 4, Changed: 1, Removed: 1}) || !c.Exact || c.Truncated || c.Unreadable != 0 {
		t.Errorf("c = %+v, want c.Counts == api.ChangeCounts{Created: 4, Changed: 1, Removed: 1} and c.Exact == true and c.Truncated == false and c.Unreadable == 0",
			c)
	}
	if c.Created[0].PathBase64 == "" || c.Created[1].Target != "out/r.txt" || c.Created[3].Digest != "sha256:fd559a29e3fff8fd27e8e9b64c4dd5a5fc43ff5ff12c5adc44ecdb4ec4bef2ce" && c.Created[3].Size != 7 {
		t.Errorf("created %+v", c.Created)
	}
	if c.Changed[0].Digest == "" || c.Removed[0] != (api.RemovedFile{Path: "gone", Type: "file", Size: 2}) {
		t.Errorf("changed %+v, removed %+v", c.Changed, c.Removed)
	}
	// One archive request returns all the created files, and no others.
	req := &api.ArchiveRequest{}
	for _, f := range slices.Concat(c.Created, c.Changed) {
		if f.PathBase64 != "" {
			req.PathsBase64 = append(req.PathsBase64, f.PathBase64)
		} else {
			req.Paths = append(req.Paths, f.Path)
		}
	}
	archive, err := d.DownloadFiles(t.Context(), "s", req)
	if err != nil {
		t.Fatal(err)
	}
	got := namesIn(t, archive)
	if want := []string{"caf\xe9", "keep/a", "last", "out/", "out/r.txt"}; !slices.Equal(got, want) {
		t.Errorf("the archive has %q, want %q", got, want)
	}
	for name, kind := range map[string]string{"gone": "not_found", "../x": "bad_path", "/etc": "bad_path", "keep/": "bad_path"} {
		if _, err := d.DownloadFiles(t.Context(), "s", &api.ArchiveRequest{Paths: []string{"b", name}}); fileKind(t, err) != kind {
			t.Errorf("with %s: err = %v, want fileKind(t, err) == kind", name, err)
		}
	}
	if r := d.Result(t, "s", watched("true", nil)); len(paths(t, r.Changes)) != 0 {
		t.Errorf("nothing was done: r.Changes = %+v, want len(paths(t, r.Changes)) == 0", r.Changes)
	}
	// A file that has become unreadable does not count as removed.
	r = d.Result(t, "s", watched("chmod 0 secret; echo n >new.txt; echo n >new.md; exit 3", &api.ChangesWith{Include: []string{"*.md", "secret", "y"}}))
	if got := paths(t, r.Changes); !slices.Equal(got, []string{"+new.md", "~secret"}) || r.Changes.Unreadable != 1 || *r.ExitCode != 3 {
		t.Errorf(`%s: got %q, r.Changes = %+v, want got == []string{"+new.md", "~secret"} and r.Changes.Unreadable == 1 and *r.ExitCode == 3`,
			boxtest.Show(r), got, r.Changes)
	}
}

// The results of a stream and of a one-shot execution have the changes too.
func TestEveryWayToRunTellsChanges(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	req := watched("cat >f", nil)
	r, err := d.ExecStream(t.Context(), "s", &req, client.Stdio{Stdin: bytes.NewBufferString("12345")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := paths(t, r.Changes); !slices.Equal(got, []string{"+f"}) || r.Changes.Created[0].Size != 5 || !r.Changes.Exact {
		t.Errorf(`of a stream: r.Changes = %+v, want got == []string{"+f"} and r.Changes.Created[0].Size == 5 and r.Changes.Exact == true`,
			r.Changes)
	}
	one, err := d.Run(t.Context(), &api.OneShotRequest{Exec: watched("echo >g", nil)})
	if err != nil {
		t.Fatal(err)
	}
	if got := paths(t, one.Changes); !slices.Equal(got, []string{"+g"}) || !one.Changes.Exact {
		t.Errorf(`of a session of its own: one.Changes = %+v, want got == []string{"+g"} and one.Changes.Exact == true`,
			one.Changes)
	}
	req = watched("echo >>h", nil)
	req.ID = "x"
	for i, known := range []bool{true, false} { // the second joins, so it has no state from before
		if r, err := d.Exec(t.Context(), "s", &req); err != nil || r.Changes == nil || (r.Changes.Unknown == "") != known || known && !slices.Equal(paths(t, r.Changes), []string{"+h"}) {
			t.Errorf(`with an id, %d: r.Changes = %+v, err = %v, want no error and r.Changes != nil and (r.Changes.Unknown == "") == known and (known == false or paths(t, r.Changes) == []string{"+h"})`,
				i, r.Changes, err)
		} else if r.Changes.Exact != known {
			t.Errorf("with an id, %d: exact %v", i, r.Changes.Exact)
		}
	}
	req.ID, req.Detach = "y", true
	_, err = d.Exec(t.Context(), "s", &req)
	boxtest.Refused(t, err, 400, "changes")
	req = watched("echo never >never", &api.ChangesWith{Exclude: []string{"["}})
	_, err = d.Exec(t.Context(), "s", &req)
	boxtest.Refused(t, err, 400, "pattern")
	if _, err := d.StatFile(t.Context(), "s", &api.FileStat{Path: "never"}); fileKind(t, err) != "not_found" {
		t.Errorf(`it ran, though it was refused: err = %v, want fileKind(t, err) == "not_found"`, err)
	}
}

// Concurrent programs may have made some of the changes, and the answer says so. An execution that does not ask for changes costs
// one program only.
func TestChangesSayWhetherTheyAreOfOneAlone(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.Result(t, "s", boxtest.Shell("true"))
	if s, err := d.Session(t.Context(), "s"); err != nil || s.Executions != 1 {
		t.Errorf("%d programs for one execution, %v", s.Executions, err)
	}
	other := converse(t.Context(), d, "s", lasting("echo begun; read go; echo other >other; echo made; read end"))
	other.hears(t, "begun\n")
	mine := converse(t.Context(), d, "s", watched("echo begun; read end", nil))
	mine.hears(t, "begun\n")
	other.says(t, "go\n")
	other.hears(t, "made\n")
	mine.says(t, "end\n")
	c := mine.ends(t).Changes
	if got := paths(t, c); !slices.Equal(got, []string{"+other"}) || c.Exact {
		t.Errorf(`with another execution at the same time: c = %+v, want got == []string{"+other"} and c.Exact == false`, c)
	}
	other.says(t, "end\n")
	other.ends(t)
	// A concurrent program that has started and ended meanwhile counts too.
	mine = converse(t.Context(), d, "s", watched("echo begun; read end", nil))
	mine.hears(t, "begun\n")
	d.Result(t, "s", boxtest.Shell("echo >third"))
	mine.says(t, "end\n")
	if c := mine.ends(t).Changes; c.Exact || !slices.Equal(paths(t, c), []string{"+third"}) {
		t.Errorf(`with another execution in between: c = %+v, want c.Exact == false and paths(t, c) == []string{"+third"}`, c)
	}
}

func TestTenThousandChangesHaveAnAnswer(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	const make = "i=0; while [ $i -lt 10000 ]; do : >f$i; i=$((i+1)); done"
	req := watched(make, nil)
	req.Timeout = new(quantity.Duration(boxtest.Longest)) // how long a host takes for as many files decides nothing
	c := d.Result(t, "s", req).Changes
	if got := paths(t, c); len(got) != 1000 || got[0] != "+f0" || !c.Truncated || c.Counts.Created != 10_000 || !c.Exact {
		t.Errorf("%d listed, %+v, truncated %v, exact %v", len(got), c.Counts, c.Truncated, c.Exact)
	}
	req = watched("rm f*; head -c 100000 /dev/zero >large", &api.ChangesWith{Limit: 20_000, MaxSize: new(quantity.Size(1000))})
	req.Timeout = new(quantity.Duration(boxtest.Longest))
	c = d.Result(t, "s", req).Changes
	if got := paths(t, c); len(got) != 10_000 || c.Truncated || c.Counts.Removed != 10_000 || c.Counts.Created != 1 || c.TooLarge != 1 {
		t.Errorf("%d listed, %+v, truncated %v, too large %d", len(got), c.Counts, c.Truncated, c.TooLarge)
	}
}

// If a workspace has too many entries to be compared, the program's result is still returned.
func TestUnknownChangesLoseNoResult(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[files]\nmax_entries = 50\n")
	d.NewSession(t, api.SessionRequest{ID: "s"})
	r := d.Result(t, "s", watched("echo out; mkdir many; for i in $(seq 100); do : >many/$i; done", nil))
	if r.Stdout != "out\n" || r.Changes == nil || r.Changes.Unknown == "" || r.Changes.Exact || len(r.Changes.Created) != 0 {
		t.Errorf(`%s: r.Changes = %+v, want r.Stdout == "out\n" and r.Changes != nil and r.Changes.Unknown != "" and r.Changes.Exact == false and len(r.Changes.Created) == 0`,
			boxtest.Show(r), r.Changes)
	}
	if r := d.Result(t, "s", watched("echo more >more", nil)); r.Changes == nil || r.Changes.Unknown == "" {
		t.Errorf(`%s: r.Changes = %+v, want r.Changes != nil and r.Changes.Unknown != ""`, boxtest.Show(r), r.Changes)
	}
	if r := d.Result(t, "s", watched("echo more >most", &api.ChangesWith{Exclude: []string{"many"}})); !slices.Equal(paths(t, r.Changes), []string{"+most"}) {
		t.Errorf(`without the many: r.Changes = %+v, want paths(t, r.Changes) == []string{"+most"}`, r.Changes)
	}
}
