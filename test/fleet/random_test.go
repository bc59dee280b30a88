// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// faultsVariable sets how many faults TestRandomFaults makes, and seedVariable which ones.
const (
	faultsVariable = "FLEET_FAULTS"
	seedVariable   = "FLEET_SEED"
	usualFaults    = 12
)

func number(t *testing.T, variable string, usual int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// made is what clients know about the sessions that they requested.
type made struct {
	mu    sync.Mutex
	acked map[string]bool // created, and the write to it was acknowledged
}

// uses creates sessions and writes a mark into each, until stop is closed. A failed request is retried.
func (m *made) uses(h *house, name string, stop chan struct{}) {
	for i := 0; ; i++ {
		id := fmt.Sprint(name, "-", i)
		for _, ask := range []struct {
			path string
			body map[string]any
		}{
			{"/v1/sessions", map[string]any{"id": id, "wait": "1s"}},
			{"/v1/sessions/" + id + "/exec", map[string]any{"argv": []string{"sh", "-c", "echo " + id + " > mark"}}},
		} {
			for {
				code := h.get("POST", ask.path, ask.body, nil)
				select {
				case <-stop:
					return
				default:
				}
				if code == http.StatusOK || code == http.StatusCreated {
					break
				}
				<-time.After(100 * time.Millisecond)
			}
		}
		m.mu.Lock()
		m.acked[id] = true
		m.mu.Unlock()
		<-time.After(500 * time.Millisecond)
	}
}

// moves moves sessions to and fro until stop is closed, and ignores the results.
func (m *made) moves(h *house, r *rand.Rand, stop chan struct{}) (moved int) {
	for {
		m.mu.Lock()
		ids := slices.Sorted(maps.Keys(m.acked))
		m.mu.Unlock()
		if len(ids) > 0 && h.get("POST", "/v1/fleet/sessions/"+ids[r.IntN(len(ids))]+"/move", nil, nil) == http.StatusOK {
			moved++
		}
		select {
		case <-stop:
			return moved
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// reads runs programs in these sessions and reads what they write until stop is closed, and returns how many were read to the end.
func (m *made) reads(h *house, r *rand.Rand, stop chan struct{}) (whole int) {
	c := client.New(h.base())
	c.Token = h.token
	defer c.Close()
	for n := 0; ; n++ {
		select {
		case <-stop:
			return whole
		case <-time.After(100 * time.Millisecond):
		}
		m.mu.Lock()
		ids := slices.Sorted(maps.Keys(m.acked))
		m.mu.Unlock()
		if len(ids) > 0 && h.reads(c, ids[r.IntN(len(ids))], n) {
			whole++
		}
	}
}

// reads runs a program in a session and reads its output. However the stream ends, no byte of what was received is missing,
// duplicated or wrong. whole: the output is complete.
func (h *house) reads(c *client.Client, id string, n int) (whole bool) {
	const program = `i=0; while [ $i -lt 100 ]; do echo "line $i of $0"; i=$((i+1)); sleep 0.005; done`
	var want, got strings.Builder
	for i := range 100 {
		fmt.Fprintf(&want, "line %d of %d\n", i, n)
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), 30*time.Second)
	defer cancel()
	res, err := c.ExecStream(ctx, id, &api.ExecRequest{Argv: []string{"sh", "-c", program, strconv.Itoa(n)}}, client.Stdio{Stdout: &got, Stderr: io.Discard}, nil)
	whole = err == nil && res.ExitCode != nil && *res.ExitCode == 0
	if whole && got.String() != want.String() || !strings.HasPrefix(want.String(), got.String()) {
		h.t.Errorf("program %d in session %s, %+v, %v, has written %d bytes that are not the %d expected:\n%s", n, id, res, err, got.Len(), want.Len(), got.String())
	}
	return whole
}

// fault makes one fault and mends it.
func (h *house) fault(r *rand.Rand, port int, links map[string]*link) {
	pause := func() { <-time.After(time.Duration(r.IntN(1500)) * time.Millisecond) }
	pause()
	switch r.IntN(5) {
	case 0:
		h.gate.kill()
		pause()
		h.gate.start()
	case 1:
		h.nats.Shutdown()
		h.nats.WaitForShutdown()
		pause()
		h.nats = startNATS(h.t, filepath.Join(h.dir, "nats"), port, "")
	case 2:
		n := h.nodes[r.IntN(len(h.nodes))]
		links[n.name].set(func() { links[n.name].cut = true })
		if r.IntN(4) == 0 {
			boxtest.Eventually(h.t, "node "+n.name+", which is cut off, is lost", func() bool {
				var list api.FleetNodeList
				return h.get("GET", "/v1/fleet/nodes", nil, &list) == http.StatusOK &&
					slices.ContainsFunc(list.Nodes, func(is api.FleetNodeState) bool { return is.Name == n.name && is.State == api.FleetNodeLost })
			})
		}
		pause()
		links[n.name].set(func() { links[n.name].cut = false })
	default:
		n := h.nodes[r.IntN(len(h.nodes))]
		n.agent.kill()
		pause()
		n.agent.start()
	}
}

// After random faults, some of them while sessions are moved, no session exists twice, and none whose creation was acknowledged is
// gone or empty. Output of programs is read without a gap meanwhile.
func TestRandomFaults(t *testing.T) {
	t.Parallel()
	seed, faults := number(t, seedVariable, int(time.Now().UnixNano()&0xffffff)), number(t, faultsVariable, usualFaults)
	t.Logf("%s=%d %s=%d", seedVariable, seed, faultsVariable, faults)
	r := rand.New(rand.NewPCG(uint64(seed), 0))
	h := &house{t: t, dir: boxtest.TempDir(t), via: map[string]string{}}
	h.nats = startNATS(t, filepath.Join(h.dir, "nats"), anyPort, "")
	address := h.nats.Addr().(*net.TCPAddr)
	links := map[string]*link{}
	for _, name := range []string{"n1", "n2"} {
		links[name] = newLink(t, address.String)
		h.via[name] = links[name].address
	}
	h.fill(2)
	m := &made{acked: map[string]bool{}}
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for i := range 3 {
		clients.Go(func() { m.uses(h, fmt.Sprint("c", i), stop) })
	}
	var moved int
	clients.Go(func() { moved = m.moves(h, rand.New(rand.NewPCG(uint64(seed), 1)), stop) })
	var whole int
	clients.Go(func() { whole = m.reads(h, rand.New(rand.NewPCG(uint64(seed), 2)), stop) })
	for range faults {
		h.fault(r, address.Port, links)
	}
	h.ready(2)
	close(stop)
	clients.Wait()
	h.ready(2)
	t.Logf("%d sessions were made and written to, and moved %d times; %d programs were read to their ends", len(m.acked), moved, whole)
	c := h.client()
	h.makes("calm", "n1")
	boxtest.Eventually(t, "a program is read to its end", func() bool { return h.reads(c, "calm", -1) })
	for id := range m.acked { // a node waits for a move that is not renewed
		boxtest.Eventually(t, "the claim of "+id+" is live", func() bool { return h.where(id).State == api.FleetClaimLive })
	}
	var lives map[string]string
	boxtest.Eventually(t, "no session is on two nodes", func() bool { // what is left of a move that broke off ends with the next announcement
		lives = map[string]string{}
		for _, n := range h.nodes {
			list, err := n.boxd.Sessions(t.Context(), true)
			if err != nil {
				t.Fatal(err)
			}
			for i := range list {
				if lives[list[i].ID] != "" {
					return false
				}
				lives[list[i].ID] = n.name
			}
		}
		return true
	})
	for id := range m.acked {
		if claim := h.where(id); claim.Node != lives[id] {
			t.Errorf("session %s is claimed by %s and runs on %q", id, claim.Node, lives[id])
		}
		var res api.ExecResult
		boxtest.Eventually(t, "session "+id+" answers", func() bool { // a stream to an agent that was killed meanwhile fails once
			_, err := c.StartSession(t.Context(), id) // a move that broke off may have left it stopped
			if err != nil {
				return false
			}
			res, err = c.Exec(t.Context(), id, &api.ExecRequest{Argv: []string{"cat", "mark"}})
			return err == nil
		})
		if res.Stdout != id+"\n" {
			t.Errorf(`session %s lacks what was written: res = %+v, want res.Stdout == id + "\n"`, id, res)
		}
	}
}
