// SPDX-License-Identifier: Apache-2.0

package boxes_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// callerAnswer is the answer to an execution: a result or a problem.
type callerAnswer struct {
	Result  api.ExecResult
	Problem *api.Problem
}

// runAs makes one execution as another user of the host, who may open the socket through its group.
func runAs(t *testing.T, d *boxtest.Daemon, uid uint32, run api.OneShotRequest) (answer callerAnswer) {
	t.Helper()
	body, err := json.Marshal(run)
	if err != nil {
		t.Fatal(err)
	}
	got := d.AsUser(t, uid, boxtest.Request("POST", "/v1/exec", string(body)))[0]
	if got.Code != http.StatusOK {
		answer.Problem = new(got.Problem(t))
		return answer
	}
	if err := json.Unmarshal(got.Body, &answer.Result); err != nil {
		t.Fatalf("client as uid %d: %s", uid, got.Body)
	}
	return answer
}

// theirs returns a session request with one mount.
func theirs(source, mode string) api.SessionRequest {
	return api.SessionRequest{Mounts: []api.Mount{{Source: source, Target: "/mnt", Mode: mode}}}
}

func TestUserLendsWhatIsTheirs(t *testing.T) {
	d := start(t)
	own := d.MountSource(t, "own", owner)
	line := "id -u; echo text > /mnt/file; stat -c %u:%g /mnt/file"
	answer := runAs(t, d, owner, api.OneShotRequest{Session: theirs(own, "rw"), Exec: api.ExecRequest{Command: &line}})
	if answer.Problem != nil || answer.Result.Stdout != "1000\n1000:1000\n" {
		t.Fatalf(`answer = %+v, want answer.Problem == nil and answer.Result.Stdout == "1000\n1000:1000\n"`, answer)
	}
	belongs(t, own, owner, boxtest.OtherGID, "file") // by the caller's uid and gid
}

func TestAUserMountsNoMoreThanTheyMayOpen(t *testing.T) {
	d := start(t)
	own, open, closed := d.MountSource(t, "own", owner), d.MountSource(t, "open", stranger), d.MountSource(t, "closed", stranger)
	roots := d.MountSource(t, "roots", 0)
	for dir, mode := range map[string]os.FileMode{open: 0o777, closed: 0o700, roots: 0o777} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
	}
	put(t, filepath.Join(open, "file"), "known", 0o644, stranger)
	put(t, filepath.Join(open, "secret"), "secret", 0o600, stranger)
	put(t, filepath.Join(open, "mine"), "mine", 0o600, owner)
	const mayOpen = "an existing directory that you can open"
	for _, tc := range []struct {
		name    string
		session api.SessionRequest
		status  int
		field   string
		allowed string
	}{
		{"writing to another's", theirs(open, "rw"), 403, "mounts[0].source", "owned by uid 4242"},
		{"writing to root's", theirs(roots, "rw"), 403, "mounts[0].source", "owned by uid 4242"},
		{"reading another's closed one", theirs(closed, "ro"), 400, "mounts[0].source", mayOpen},
		{"boxd's state", theirs(d.State, "ro"), 400, "mounts[0].source", mayOpen},
		{"below boxd's state", theirs(d.State+"/workspaces", "ro"), 400, "mounts[0].source", mayOpen},
		{"above boxd's state", theirs(d.Dir, "ro"), 403, "mounts[0].source", "outside system directories"},
		{"naming an owner", api.SessionRequest{Mounts: []api.Mount{{Source: own, Target: "/mnt", Mode: "rw", Owner: owner}}}, 400, "mounts[0].owner", "unless the caller has uid 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d.Warm()
			before := d.Look()
			p := runAs(t, d, owner, api.OneShotRequest{Session: tc.session, Exec: api.ExecRequest{Argv: []string{"true"}}}).Problem
			if p == nil {
				t.Fatal("the mount was accepted")
			}
			refused(t, &client.Error{Problem: *p}, tc.status, tc.field, tc.allowed)
			if tc.allowed == mayOpen && (p.Failure == nil || p.Failure.Errno != "EACCES") {
				t.Errorf("%s: failure %+v", p.Detail, p.Failure)
			}
			untouched(t, d, before)
		})
	}
	// Files that everybody may read they may read, with the rights of others.
	line := "cat /mnt/file; cat /mnt/secret || echo closed; cat /mnt/mine || echo closed; touch /mnt/x || echo ro"
	answer := runAs(t, d, owner, api.OneShotRequest{Session: theirs(open, "ro"), Exec: api.ExecRequest{Command: &line}})
	if answer.Result.Stdout != "knownclosed\nclosed\nro\n" {
		t.Errorf(`reading another's open one: answer = %+v, want answer.Result.Stdout == "knownclosed\nclosed\nro\n"`,
			answer)
	}
}

func TestUserWithoutAHomeLendsNothingByDefault(t *testing.T) {
	d := start(t, "[mounts]\nallow = [\"{home}\"]\n")
	line := "ls -A /mnt"
	dir := d.MountSource(t, "own", owner)
	for _, mode := range []string{"ro", "rw"} {
		p := runAs(t, d, owner, api.OneShotRequest{Session: theirs(dir, mode), Exec: api.ExecRequest{Command: &line}}).Problem
		if p == nil {
			t.Fatalf("%s was mounted", dir)
		}
		refused(t, &client.Error{Problem: *p}, 403, "mounts[0].source", "below your home")
	}
}
