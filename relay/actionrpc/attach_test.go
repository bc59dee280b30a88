// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// A client from which nothing is read, because its process does not read, is not dropped for pongs that are not read either.
func TestAClientThatBoxdDoesNotReadFromIsNotDropped(t *testing.T) {
	t.Parallel()
	served := make(chan *websocket.Conn, 1)
	relays := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ws, err := websocket.Accept(w, r, nil); err == nil {
			served <- ws
			<-r.Context().Done()
		}
	}))
	defer relays.Close()
	client, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(relays.URL, "http"), nil) //nolint:bodyclose // the library has it
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseNow()
	r := &attached{ws: <-served}
	defer r.ws.CloseNow()
	r.full.Store(true)
	dropped := make(chan struct{})
	go func() { // ends below
		defer close(dropped)
		r.watch(t.Context(), time.Millisecond, 10*time.Millisecond)
	}()
	select {
	case <-dropped:
		t.Fatal("the connection was closed while nothing was read from it")
	case <-time.After(200 * time.Millisecond):
	}
	r.full.Store(false)
	<-dropped
}
