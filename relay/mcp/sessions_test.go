// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// A client may disconnect while a box is created for it: that box is ended with the others.
func TestABoxCreatedForADisconnectedClientEnds(t *testing.T) {
	t.Parallel()
	asked, gone, removed := make(chan struct{}), make(chan struct{}), make(chan string, 1)
	boxd := http.NewServeMux()
	boxd.HandleFunc("POST /v1/sessions", func(w http.ResponseWriter, _ *http.Request) {
		close(asked)
		<-gone
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		if err := json.NewEncoder(w).Encode(api.Session{ID: "late"}); err != nil {
			t.Error(err)
		}
	})
	boxd.HandleFunc("DELETE /v1/sessions/{id}", func(w http.ResponseWriter, r *http.Request) {
		removed <- r.PathValue("id")
		w.WriteHeader(http.StatusNoContent)
	})
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: boxd, ReadHeaderTimeout: time.Minute}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(ln)
	}()
	c := client.New(socket)
	defer func() {
		c.Close()
		_ = srv.Close()
		<-served
	}()
	b := NewSessions(c, SessionsOptions{})
	failed := make(chan error, 1)
	go func() {
		req := &api.SessionRequest{}
		req.TTL = new(quantity.Duration(time.Minute))
		_, err := b.createOther(t.Context(), req)
		failed <- err
	}()
	<-asked
	if err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
	close(gone)
	if err := <-failed; fault.KindOf(err) != fault.Unavailable {
		t.Errorf("err = %v, want a fault.Unavailable error", err)
	}
	select {
	case id := <-removed:
		if id != "late" {
			t.Errorf(`removed is %q, want "late"`, id)
		}
	default:
		t.Error("the box that was made too late was not removed")
	}
}
