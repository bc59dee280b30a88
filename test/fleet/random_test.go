// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
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

// moves moves sessions to and fro until stop is closed, whatever becomes of it.
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

// After random faults, some of them while sessions are moved, no session exists twice, and none whose creation was acknowledged is
// gone or empty.
func TestRandomFaults(t *testing.T) {
	t.Parallel()
	seed, faults := number(t, seedVariable, int(time.Now().UnixNano()&0xffffff)), number(t, faultsVariable, usualFaults)
	t.Logf("%s=%d %s=%d", seedVariable, seed, faultsVariable, faults)
	r := rand.New(rand.NewPCG(uint64(seed), 0))
	h := build(t, 2)
	_, port, err := net.SplitHostPort(h.nats.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	at, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	m := &made{acked: map[string]bool{}}
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for i := range 3 {
		clients.Go(func() { m.uses(h, fmt.Sprint("c", i), stop) })
	}
	var moved int
	clients.Go(func() { moved = m.moves(h, rand.New(rand.NewPCG(uint64(seed), 1)), stop) })
	for range faults {
		pause := func() { <-time.After(time.Duration(r.IntN(1500)) * time.Millisecond) }
		pause()
		switch r.IntN(4) {
		case 0:
			h.gate.kill()
			pause()
			h.gate.start()
		case 1:
			h.nats.Shutdown()
			h.nats.WaitForShutdown()
			pause()
			h.nats = startNATS(t, filepath.Join(h.dir, "nats"), at, "")
		default:
			n := h.nodes[r.IntN(len(h.nodes))]
			n.agent.kill()
			pause()
			n.agent.start()
		}
	}
	h.ready(2)
	close(stop)
	clients.Wait()
	h.ready(2)
	t.Logf("%d sessions were made and written to, and moved %d times", len(m.acked), moved)
	c := h.client()
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
			t.Errorf("session %s is claimed by %s and lives on %q", id, claim.Node, lives[id])
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
			t.Errorf("session %s has not what was written: %+v", id, res)
		}
	}
}
