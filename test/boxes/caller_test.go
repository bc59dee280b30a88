// SPDX-License-Identifier: Apache-2.0

package boxes_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// The test binary is also a client that is not root: it starts itself with this variable set to a
// callerRequest and other credentials.
const callerVariable = "BOXD_TEST_CALLER"

// nogroup is the group of the test daemon's socket, and the one that runAs calls with.
const nogroup = 65534

type callerRequest struct {
	Socket string
	Run    api.OneShotRequest
}

type callerAnswer struct {
	Result  api.ExecResult
	Problem *api.Problem
	Error   string
}

// runAs makes one execution as another user of the host, who may open the socket by its group.
func runAs(t *testing.T, d *boxtest.Daemon, uid uint32, run api.OneShotRequest) callerAnswer {
	t.Helper()
	request, err := json.Marshal(callerRequest{d.Socket, run})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = []string{callerVariable + "=" + string(request)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: nogroup}}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("client as uid %d: %v", uid, err)
	}
	var answer callerAnswer
	if err := json.Unmarshal(out, &answer); err != nil {
		t.Fatalf("client as uid %d said %q", uid, out)
	}
	return answer
}

// beCaller is the other side of runAs.
func beCaller(request string) int {
	var r callerRequest
	if err := json.Unmarshal([]byte(request), &r); err != nil {
		return 2
	}
	c := client.New(r.Socket)
	defer c.Close()
	result, err := c.Run(context.Background(), &r.Run)
	answer := callerAnswer{Result: result}
	if problem, ok := errors.AsType[*client.Error](err); ok {
		answer.Problem = &problem.Problem
	} else if err != nil {
		answer.Error = err.Error()
	}
	if json.NewEncoder(os.Stdout).Encode(answer) != nil {
		return 1
	}
	return 0
}

// theirs makes a session request with one mount.
func theirs(source, mode string) api.SessionRequest {
	return api.SessionRequest{Mounts: []api.Mount{{Source: source, Target: "/mnt", Mode: mode}}}
}

func TestUserLendsWhatIsTheirs(t *testing.T) {
	d := start(t)
	own := lend(t, d, "own", owner)
	line := "id -u; echo text > /mnt/file; stat -c %u:%g /mnt/file"
	answer := runAs(t, d, owner, api.OneShotRequest{Session: theirs(own, "rw"), Exec: api.ExecRequest{Command: &line}})
	if answer.Problem != nil || answer.Error != "" || answer.Result.Stdout != "1000\n1000:1000\n" {
		t.Fatalf("%+v", answer)
	}
	belongs(t, own, owner, nogroup, "file") // by the uid and the group they called with
}

func TestUserLendsNoMoreThanTheyMay(t *testing.T) {
	d := start(t)
	own, open, closed := lend(t, d, "own", owner), lend(t, d, "open", stranger), lend(t, d, "closed", stranger)
	roots := lend(t, d, "roots", 0)
	for dir, mode := range map[string]os.FileMode{open: 0o777, closed: 0o700, roots: 0o777} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
	}
	put(t, filepath.Join(open, "file"), "known", 0o644, stranger)
	put(t, filepath.Join(open, "secret"), "secret", 0o600, stranger)
	put(t, filepath.Join(open, "mine"), "mine", 0o600, owner)
	const mayOpen = "an existing directory you may open"
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
		{"above boxd's state", theirs(d.Dir, "ro"), 403, "mounts[0].source", "no system directory"},
		{"naming an owner", api.SessionRequest{Mounts: []api.Mount{{Source: own, Target: "/mnt", Mode: "rw", Owner: owner}}}, 400, "mounts[0].owner", "only a caller with uid 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d.Warm()
			before := d.Look()
			p := runAs(t, d, owner, api.OneShotRequest{Session: tc.session, Exec: api.ExecRequest{Argv: []string{"true"}}}).Problem
			if p == nil {
				t.Fatal("accepted")
			}
			refused(t, &client.Error{Problem: *p}, tc.status, tc.field, tc.allowed)
			if tc.allowed == mayOpen && (p.Failure == nil || p.Failure.Errno != "EACCES") {
				t.Errorf("%s: failure %+v", p.Detail, p.Failure)
			}
			untouched(t, d, before)
		})
	}
	// What is open to everybody they may read, as everybody.
	line := "cat /mnt/file; cat /mnt/secret || echo closed; cat /mnt/mine || echo closed; touch /mnt/x || echo ro"
	answer := runAs(t, d, owner, api.OneShotRequest{Session: theirs(open, "ro"), Exec: api.ExecRequest{Command: &line}})
	if answer.Result.Stdout != "knownclosed\nclosed\nro\n" {
		t.Errorf("reading another's open one: %+v", answer)
	}
}

func TestUserWithoutAHomeLendsNothingByDefault(t *testing.T) {
	d := start(t, "[mounts]\nallow = [\"{home}\"]\n")
	line := "ls -A /mnt"
	dir := lend(t, d, "own", owner)
	for _, mode := range []string{"ro", "rw"} {
		p := runAs(t, d, owner, api.OneShotRequest{Session: theirs(dir, mode), Exec: api.ExecRequest{Command: &line}}).Problem
		if p == nil {
			t.Fatalf("%s was lent", dir)
		}
		refused(t, &client.Error{Problem: *p}, 403, "mounts[0].source", "below your home")
	}
}
