// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// text is output of a program that may be read while it is written.
type text struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (x *text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.buf.Write(p)
}

func (x *text) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.buf.String()
}

// boxctl is a running boxctl.
type boxctl struct {
	t        *testing.T
	cmd      *exec.Cmd
	out, err text
}

// starts starts boxctl with the gateway as its server.
func (h *house) starts(t *testing.T, args ...string) *boxctl {
	t.Helper()
	b := &boxctl{t: t, cmd: exec.CommandContext(t.Context(), filepath.Join(boxtest.Programs(t), "boxctl"), args...)}
	b.cmd.Env = append(os.Environ(), "BOXD_SOCKET=http://"+h.address, "BOXD_TOKEN="+h.token)
	b.cmd.Stdout, b.cmd.Stderr = &b.out, &b.err
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return b
}

// says waits until it has printed words to its standard error.
func (b *boxctl) says(words string) {
	b.t.Helper()
	boxtest.Eventually(b.t, "boxctl says "+words, func() bool { return strings.Contains(b.err.String(), words) })
}

// ends waits for its end, with an exit code and words on its standard error.
func (b *boxctl) ends(code int, words string) {
	b.t.Helper()
	_ = b.cmd.Wait() // the code says it
	if got := b.cmd.ProcessState.ExitCode(); got != code || !strings.Contains(b.err.String(), words) {
		b.t.Errorf("%q: exit code %d, want %d and %q:\n%s", b.cmd.Args[1:], got, code, words, b.err.String())
	}
}

// prints returns the output of a boxctl that must succeed.
func (h *house) prints(t *testing.T, args ...string) string {
	t.Helper()
	b := h.starts(t, args...)
	b.ends(0, "")
	return b.out.String()
}

// metrics returns the gateway's Prometheus metrics, fetched with a token.
func (h *house) metrics(t *testing.T, token string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+h.address+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// An operator manages the fleet with boxctl, and drains a node: that ends no box.
func TestBoxctlManagesTheFleet(t *testing.T) {
	t.Parallel()
	h := build(t, 2)
	h.makes("s", "n1")
	has := func(where, what string) {
		t.Helper()
		if !strings.Contains(where, what) {
			t.Errorf("want %q in:\n%s", what, where)
		}
	}
	if out := h.prints(t, "fleet", "nodes", "--quiet"); out != "n1\nn2\n" {
		t.Errorf(`out = %q, want "n1\nn2\n"`, out)
	}
	if out := h.prints(t, "fleet", "ls", "--format", "{{.id}} {{.owner}} {{.node}}"); out != "s ci n1\n" {
		t.Errorf(`out = %q, want "s ci n1\n"`, out)
	}
	if out := h.prints(t, "run", "--", "echo", "here"); out != "here\n" {
		t.Errorf(`out = %q, want "here\n"`, out)
	}
	has(h.prints(t, "fleet", "ls"), "ID  OWNER  NODE  STATE")
	boxtest.Eventually(t, "the node has announced whose boxes it has", func() bool { // with its next announcement
		return h.prints(t, "fleet", "owners", "--format", "{{.owner}} {{.sessions}}") == "ci 1\n"
	})
	has(h.prints(t, "fleet", "owners"), "OWNER  BOXES  LOST  CPUS  MEMORY")
	boxtest.Eventually(t, "the metrics have how many boxes the node has", func() bool { // an announcement may still have that of run
		return strings.Contains(h.metrics(t, h.token), `boxfleet_node_sessions{node="n1"} 1`)
	})
	if text := h.metrics(t, h.viewer); !strings.Contains(text, `boxfleet_nodes{state="ready"} 2`) {
		t.Errorf("a viewer gets %s", text)
	}
	if text := h.metrics(t, h.few); !strings.Contains(text, "denied") {
		t.Errorf("a token for other routes gets %s", text)
	}
	if text := h.metrics(t, "bxt_none"); strings.Contains(text, "boxfleet_") || !strings.Contains(text, "unauthenticated") {
		t.Errorf("a client with an unknown token gets %s", text)
	}
	has(h.prints(t, "__complete", "fleet", "drain", ""), "n1\tready, ")
	h.starts(t, "fleet", "cordon", "n3").ends(1, `the gateway does not know a node "n3"`)
	for _, args := range [][]string{{"nodes"}, {"ls"}, {"owners"}, {"events"}, {"cordon", "n1"}, {"uncordon", "n1"}, {"drain", "n1"}} {
		out, err := h.on("n1").boxd.Boxctl(t, append([]string{"fleet"}, args...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "is a single boxd, not the gateway of a fleet\nhint: give the address of a gateway") {
			t.Errorf(`%q sent to a boxd instead of a gateway: err = %v, out = %s, want an error and out containing "is a single boxd, not the gateway of a fleet\nhint: give the address of a gateway"`,
				args, err, out)
		}
	}

	// Interrupting the wait leaves the node as it is.
	b := h.starts(t, "fleet", "drain", "n1", "--reason", "new disks")
	b.says("boxes left on node n1: 1")
	if err := b.cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	b.ends(130, "node n1 stays cordoned")
	h.runs("s")
	out := h.prints(t, "fleet", "nodes")
	has(out, "ready,cordoned")
	has(out, "cordoned by ci: new disks")
	if out := h.prints(t, "__complete", "fleet", "uncordon", ""); strings.Contains(out, "n2") {
		t.Errorf(`a node that is not cordoned is offered: out = %s, want out without "n2"`, out)
	}
	if node := h.placed(); node != "n2" {
		t.Errorf("a new box is at %s", node)
	}

	b = h.starts(t, "fleet", "drain", "n1")
	b.says("boxes left on node n1: 1")
	h.runs("s")
	if err := h.client().DeleteSession(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	b.ends(0, "node n1 is cordoned and has no boxes")
	has(h.prints(t, "fleet", "nodes"), "cordoned by ci: new disks") // the reason is the one it had

	h.prints(t, "fleet", "uncordon", "n1")
	h.makes("t", "n1")
	has(h.prints(t, "fleet", "events"), "node_uncordoned")

	// The contents of an unreachable node are unknown.
	b = h.starts(t, "fleet", "drain", "n1")
	b.says("boxes left on node n1: 1")
	h.on("n1").agent.kill()
	b.ends(1, "node n1 is not drained and stays cordoned: it is lost")

	// A node that is gone for good can be removed, with its cordon. The sessions lost with it stay in the list.
	h.starts(t, "fleet", "forget", "n2").ends(1, "the node \"n2\" is not lost\nhint: on that host: systemctl disable --now boxfleet-node; then wait until it is lost")
	boxtest.Eventually(t, "the session is lost too, or it and the removal are written at once", func() bool { return h.where("t").State == api.FleetClaimLost })
	h.prints(t, "fleet", "forget", "n1")
	if out := h.prints(t, "fleet", "nodes"); strings.Contains(out, "n1") {
		t.Errorf(`the nodes are %s, want out without "n1"`, out)
	}
	if claim := h.where("t"); claim.Node != "n1" || claim.State != api.FleetClaimLost {
		t.Errorf(`claim = %+v, want claim.Node == "n1" and claim.State == api.FleetClaimLost`, claim)
	}
	h.on("n1").agent.start()
	h.ready(2)
	h.runs("t")
	if out := h.prints(t, "fleet", "nodes"); strings.Contains(out, "cordoned") {
		t.Errorf(`the nodes are %s, want out without "cordoned"`, out)
	}
}
