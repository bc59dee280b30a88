// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/supervisor/access"
)

// When a gateway has gone, its streams to boxd end, also where boxd itself waits for a program that does nothing.
func TestAStreamOfAGatewayThatIsGoneEnds(t *testing.T) {
	t.Parallel()
	js := startServer(t)
	a := anAgent(t, js, &fakeBoxd{})
	a.agreed, a.cfg.Fleet.Socket = "now", filepath.Join(t.TempDir(), "fleet")
	boxd, err := new(net.ListenConfig).Listen(t.Context(), "unix", a.cfg.Fleet.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer boxd.Close()
	accepted := make(chan net.Conn, 1)
	go func() { // until boxd is closed
		defer close(accepted)
		if conn, err := boxd.Accept(); err == nil {
			accepted <- conn // the gateway reads nothing from it
		}
	}()
	gateway, streams := streamPair(t, js.Conn().ConnectedUrl(), js.Conn().ConnectedUrl())
	near, far := openStream(t, gateway, streams)
	over := make(chan struct{})
	a.clock = func() time.Time { return a.start } // the node serves, however long it has taken to get here
	go func() {
		defer close(over)
		a.carry(far)
	}()
	var conn net.Conn
	select {
	case conn = <-accepted:
	case <-over:
	}
	if conn == nil {
		t.Fatal("no request reached boxd")
	}
	defer conn.Close() // carry ends then, whatever it waits for

	for piece := make([]byte, 64<<10); err == nil; _, err = near.Write(piece) { // until the other end accepts no more
		if err := near.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	near.Close()
	select {
	case <-over:
	case <-time.After(time.Minute):
		t.Error("the stream was not ended: it waits for boxd")
	}
}

// slowBoxd is a boxd whose sessions take their time to end.
type slowBoxd struct {
	fakeBoxd

	requests chan string   // what is to end
	may      chan struct{} // closed when it may
}

func (b *slowBoxd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodDelete {
		select {
		case b.requests <- path.Base(r.URL.Path):
		case <-r.Context().Done():
			return
		}
		select {
		case <-b.may:
		case <-r.Context().Done():
			return
		}
	}
	b.fakeBoxd.ServeHTTP(w, r)
}

// A session that now belongs to another node and ends slowly delays no announcement, is ended once, and is remembered until it has
// ended.
func TestASessionThatEndsSlowlyHoldsUpNoAnnouncement(t *testing.T) {
	t.Parallel()
	js := startServer(t)
	_, bucket, err := openBucket(t.Context(), js, claimsConfig(0), "now")
	if err != nil {
		t.Fatal(err)
	}
	boxd := &slowBoxd{requests: make(chan string, 8), may: make(chan struct{})}
	boxd.status, boxd.list.Sessions = api.Status{State: "ok", MaxSessions: 10}, []api.Session{{Owner: "ci", ID: "given-up"}}
	a := anAgent(t, js, boxd)
	a.now.Gateways = map[string]access.Gateway{"main": {Role: access.User, Principals: []string{"ci"}}}
	if ok, _, err := a.fences.raise(&fence{Owner: "ci", ID: "given-up", Generation: 1, Bucket: bucket}); err != nil || !ok {
		t.Fatalf("ok = %v, err = %v, want no error and ok == true", ok, err)
	}
	remembered := func() bool {
		t.Helper()
		all, err := a.fences.list()
		if err != nil {
			t.Fatal(err)
		}
		_, ok := all[claimKey("ci", "given-up")]
		return ok
	}
	for range 3 {
		eventually(t, "the node announces itself", func() bool { return a.beat(t.Context()) == nil })
	}
	select {
	case <-boxd.requests:
	case <-time.After(time.Minute):
		t.Fatal("the session was not ended within a minute")
	}
	if !remembered() {
		t.Error("the session was forgotten before it ended")
	}
	if a.agrees(bucket) {
		t.Error("the node serves while it runs a session that is claimed elsewhere")
	}
	close(boxd.may)
	a.background.Wait()
	eventually(t, "the node serves", func() bool { return a.beat(t.Context()) == nil && a.agrees(bucket) })
	if remembered() || !slices.Equal(boxd.ended, []string{"given-up"}) || a.gaveUp.Load() != 1 {
		t.Errorf(`it is remembered: %v; ended: boxd.ended = %q, a.gaveUp.Load() = %d, want not remembered() and boxd.ended == []string{"given-up"} and a.gaveUp.Load() == 1`,
			remembered(), boxd.ended, a.gaveUp.Load())
	}
}
