// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"errors"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// outputOf reads the output of a process of ci from its node.
func outputOf(t *testing.T, c *client.Client, id, process string) (streams [2]string) {
	t.Helper()
	err := c.LogLines(t.Context(), id, process, client.LogOptions{}, joined(&streams))
	if err != nil {
		t.Fatal(err)
	}
	return streams
}

// joined concatenates pieces; a gap leaves a mark.
func joined(streams *[2]string) func(*api.LogLine) error {
	return func(line *api.LogLine) error {
		i := map[string]int{"stdout": 0, "stderr": 1}[line.Stream]
		if line.Gap > 0 {
			streams[i] += "<gap>"
		}
		streams[i] += line.Data
		return nil
	}
}

// told returns the details of the events of a kind.
func (h *house) told(kind string) (details []string) {
	h.t.Helper()
	var list api.FleetEventList
	h.get("GET", "/v1/fleet/events", nil, &list)
	for _, e := range list.Events {
		if e.Type == kind {
			details = append(details, e.Node+" "+e.Session+" "+e.Detail)
		}
	}
	return details
}

// givesUp cuts a node off until its session is lost, gives that up, creates it again on the other node, lets the first node return,
// and waits until that has ended its own copy.
func (h *house) givesUp(id string, l *link) {
	h.t.Helper()
	c := h.client()
	n := h.on("n1")
	n.boxd.Owner = "ci"
	l.set(func() { l.cut = true })
	boxtest.Eventually(h.t, "the session is lost", func() bool { return h.where(id).State == api.FleetClaimLost })
	if h.outputs != "" {
		h.refuses(h.token, "GET", "/v1/sessions/"+url.PathEscape(id), nil, http.StatusConflict, "is then kept when its node returns: boxctl fleet outputs")
	}
	if err := c.DeleteSession(h.t.Context(), id); err != nil {
		h.t.Fatal(err)
	}
	h.makes(id, "n2")
	l.set(func() { l.cut = false })
	boxtest.Eventually(h.t, "the node is back and has ended the session that was given up", func() bool {
		_, err := n.boxd.Session(h.t.Context(), id)
		return errors.Is(err, client.NotFound)
	})
}

// The output of the processes of a box that its node has to end is stored: byte for byte, with their exit status, readable by its
// owner only.
func TestTheOutputOfABoxThatANodeHasToEndIsKept(t *testing.T) {
	t.Parallel()
	h := &house{t: t, dir: boxtest.TempDir(t), outputs: `size = "64MiB"` + "\n" + `owner_size = "16MiB"`}
	h.nats = startNATS(t, filepath.Join(h.dir, "nats"), anyPort, guarded()) // a node needs no right that it had not before
	l := newLink(t, func() string { return h.nats.Addr().String() })
	h.via = map[string]string{"n1": "n1:n1@" + l.address}
	h.fill(2)
	c := h.client()
	h.makes("s/1", "n1")
	script := `trap 'echo last; exit 7' TERM; head -c 900000 /dev/urandom; echo oops >&2; exec 2>/dev/null; while :; do sleep 1 & wait $!; done`
	if _, _, err := c.StartProcess(t.Context(), "s/1", "web", &api.ProcessRequest{Argv: []string{"sh", "-c", script}, Restart: &api.Restart{Policy: "always"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Exec(t.Context(), "s/1", &api.ExecRequest{ID: "job", Argv: []string{"sh", "-c", `seq 20000; exit 3`}}); err != nil {
		t.Fatal(err)
	}
	own := h.on("n1").boxd
	own.Owner = "ci"
	boxtest.Eventually(t, "the processes have written all their output", func() bool {
		p, err := own.Process(t.Context(), "s/1", "web", 0)
		return err == nil && p.Output[0].Bytes == 900000 && p.Output[1].Bytes == 5
	})
	web, job := outputOf(t, own.Client, "s/1", "web"), outputOf(t, own.Client, "s/1", "job")
	web[0] += "last\n" // it ends before the box
	if len(web[0]) != 900005 || len(job[0]) != 108894 {
		t.Fatalf("%d and %d bytes", len(web[0]), len(job[0]))
	}
	h.givesUp("s/1", l)
	var kept []api.FleetOutput
	boxtest.Eventually(t, "the gateway has stored the output of both processes, with an event for each", func() bool {
		var err error
		kept, err = c.FleetOutputs(t.Context())
		return err == nil && len(kept) == 2 && len(h.told("output_kept")) == 2
	})
	for _, want := range []struct {
		process, status, reason string
		code                    int
		streams                 [2]string
	}{{"web", "exited", "stopped", 7, web}, {"job", "exited", "", 3, job}} {
		i := slices.IndexFunc(kept, func(k api.FleetOutput) bool { return k.Process == want.process })
		if i < 0 {
			t.Fatalf("kept = %+v, want i >= 0", kept)
		}
		k := kept[i]
		if k.Owner != "ci" || k.Session != "s/1" || k.Node != "n1" || k.State != "ended" || k.Status != want.status || k.Reason != want.reason || k.ExitCode == nil || *k.ExitCode != want.code ||
			k.EndedAt == nil || k.EndedAt.Before(k.StartedAt) || k.KeptAt.Before(k.StartedAt) || k.Size != int64(len(want.streams[0])+len(want.streams[1])) || k.Omitted != 0 || !strings.Contains(k.Why, "node n2 has claimed it") {
			t.Errorf("k = %+v", k)
		}
		var got [2]string
		if err := c.FleetOutput(t.Context(), k.Name, joined(&got)); err != nil || got != want.streams {
			t.Errorf("%s: %d and %d bytes, %v, want %d and %d", k.Process, len(got[0]), len(got[1]), err, len(want.streams[0]), len(want.streams[1]))
		}
		// Other callers get "not found". A caller that may list boxes of others is refused the output, whether it exists or not.
		h.refuses(h.user, "GET", "/v1/fleet/outputs/"+k.Name, nil, http.StatusNotFound, "no output \""+k.Name)
		h.refuses(h.user, "GET", "/v1/fleet/outputs/"+k.Name+"?owner=ci", nil, http.StatusForbidden, "permission denied")
		h.refuses(h.token, "GET", "/v1/fleet/outputs/"+k.Name+"?owner=other", nil, http.StatusNotFound, "no output \""+k.Name)
	}
	var list api.FleetOutputList
	if code := h.as(h.user, "GET", "/v1/fleet/outputs", nil, &list); code != http.StatusOK || len(list.Outputs) > 0 {
		t.Errorf("another caller gets %d %+v", code, list)
	}
	if code := h.as(h.viewer, "GET", "/v1/fleet/outputs", nil, &list); code != http.StatusOK || len(list.Outputs) != 2 {
		t.Errorf("a viewer of the owner gets %d %+v", code, list)
	}
	h.refuses(h.user, "GET", "/v1/fleet/outputs?owner=ci", nil, http.StatusForbidden, "permission denied")
	h.refuses(h.token, "GET", "/v1/fleet", nil, http.StatusNotFound, "no route")
	h.refuses(h.token, "DELETE", "/v1/fleet/outputs", nil, http.StatusNotFound, "no route")
	for _, name := range []string{"none", strings.Repeat("a", 32), "%2e%2e"} {
		h.refuses(h.token, "GET", "/v1/fleet/outputs/"+name, nil, http.StatusNotFound, "no output")
	}
	if details := h.told("output_kept"); !slices.ContainsFunc(details, func(d string) bool { return strings.HasPrefix(d, "n1 s/1 process web of ci, 900010 bytes: ") }) {
		t.Errorf("details = %q", details)
	}
	if details := h.told("output_lost"); len(details) > 0 {
		t.Errorf("details = %q, want len(details) == 0", details)
	}
	if out := h.prints(t, "fleet", "output", "--raw", "s/1", "job"); out != job[0] {
		t.Errorf("boxctl prints %d bytes, want %d", len(out), len(job[0]))
	}
	if out := h.prints(t, "fleet", "outputs", "--format", "{{.process}} {{.exit_code}}"); out != "web 7\njob 3\n" && out != "job 3\nweb 7\n" {
		t.Errorf(`out = %q, want out == "web 7\njob 3\n" or out == "job 3\nweb 7\n"`, out)
	}
	h.starts(t, "fleet", "output", "s/1").ends(2, "output is kept of several processes of the box")
	h.starts(t, "fleet", "output", "s/1", "none").ends(1, "no output is kept")
	h.runs("s/1") // the new one
	for _, k := range kept {
		h.refuses(h.viewer, "DELETE", "/v1/fleet/outputs/"+k.Name, nil, http.StatusForbidden, "needs the user role")
		h.refuses(h.user, "DELETE", "/v1/fleet/outputs/"+k.Name, nil, http.StatusNotFound, "no output")
	}
	h.prints(t, "fleet", "rm-output", "s/1", "job")
	if out := h.prints(t, "fleet", "outputs", "--format", "{{.process}}"); out != "web\n" {
		t.Errorf(`without the job the outputs are %q, want "web\n"`, out)
	}
	h.starts(t, "fleet", "rm-output", "s/1", "job").ends(1, "no output is kept")
	h.prints(t, "fleet", "rm-output", "s/1")
	if list, err := c.FleetOutputs(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("the outputs are %+v (%v)", list, err)
	}
	if details := h.told("output_removed"); len(details) != 2 || !slices.Contains(details, "n1 s/1 process web of ci, by ci") {
		t.Errorf(`details = %q, want len(details) == 2 and details containing "n1 s/1 process web of ci, by ci"`,
			details)
	}
}

// fills stores that many bytes in the store of outputs.
func (h *house) fills(size int) {
	h.t.Helper()
	js, err := jetstream.New(connect(h.t, h.login("gateway")), jetstream.WithDefaultTimeout(natsTimeout))
	if err != nil {
		h.t.Fatal(err)
	}
	kv, err := js.CreateKeyValue(h.t.Context(), jetstream.KeyValueConfig{Bucket: "boxd_outputs", Storage: jetstream.FileStorage})
	if err == nil {
		_, err = kv.Put(h.t.Context(), "somebody", make([]byte, size))
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// A gateway without the configuration stores nothing, one with too little space stores what fits, and both report that. The box is
// ended in any case.
func TestAGatewayReportsOutputThatItDoesNotStore(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ settings, message string }{
		"off":             {"", "no gateway keeps output"},
		"of one owner":    {`size = "64MiB"` + "\n" + `owner_size = "100KiB"`, "owner_size in [outputs]"},
		"of all together": {`size = "600KiB"`, "the outputs of all owners together would have more than their limit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &house{t: t, dir: boxtest.TempDir(t), outputs: tc.settings}
			h.nats = startNATS(t, filepath.Join(h.dir, "nats"), anyPort, "")
			l := newLink(t, func() string { return h.nats.Addr().String() })
			h.via = map[string]string{"n1": l.address}
			h.fill(2)
			if name == "of all together" {
				h.fills(400 << 10)
			}
			c := h.client()
			h.makes("s", "n1")
			for process, script := range map[string]string{"much": "head -c 500000 /dev/urandom", "little": "echo little"} {
				if _, err := c.Exec(t.Context(), "s", &api.ExecRequest{ID: process, Argv: []string{"sh", "-c", script}}); err != nil {
					t.Fatal(err)
				}
			}
			h.givesUp("s", l)
			lost := func() bool {
				return slices.ContainsFunc(h.told("output_lost"), func(d string) bool {
					return (strings.HasPrefix(d, "n1 s process much of ci: ") || tc.settings == "" && strings.HasPrefix(d, "n1 s box of ci: ")) && strings.Contains(d, tc.message)
				})
			}
			boxtest.Eventually(t, "there is an output_lost event with the reason", lost)
			var out api.FleetOutputList
			if tc.settings == "" {
				h.refuses(h.token, "GET", "/v1/fleet/outputs", nil, http.StatusNotImplemented, "set size in [outputs] of gateway.toml")
				return
			}
			boxtest.Eventually(t, "the output that fits is stored", func() bool {
				return h.get("GET", "/v1/fleet/outputs", nil, &out) == http.StatusOK && len(out.Outputs) == 1 && out.Outputs[0].Process == "little"
			})
		})
	}
}
