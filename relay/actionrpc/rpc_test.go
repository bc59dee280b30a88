// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"
)

func TestADefectInAnActionEndsThatCallAlone(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := &Server{cfg: Config{Log: slog.New(slog.NewTextHandler(&log, nil))}}
	a := &action{do: func(context.Context, *call) (any, error) {
		var none map[string]int
		none["x"] = 1 //nolint:staticcheck // it is to break
		return none, nil
	}}
	c := &call{request: &request{Seq: 7, Action: "box_exec"}}
	data, err := s.safely(t.Context(), c, a)
	if data != nil || err == nil || !strings.HasPrefix(err.Error(), "RuntimeError: ") {
		t.Errorf("%v, %v", data, err)
	}
	if text := log.String(); !strings.Contains(text, "box_exec") || !strings.Contains(text, "nil map") || !strings.Contains(text, "rpc_test.go") {
		t.Errorf("the log says: %s", text)
	}
	// A request without a connection panics before its action, and is answered all the same.
	if text := s.answer(t.Context(), c); !bytes.Contains(text, []byte(`{"seq_id":7,"code":1,`)) {
		t.Errorf("%s", text)
	}
}

// A client that keeps sending requests and reads no answers is disconnected at the timeout, and its pending requests are canceled.
func TestAClientThatTakesNoAnswersIsCutOff(t *testing.T) {
	t.Parallel()
	s := &Server{cfg: Config{Log: slog.New(slog.DiscardHandler), Patience: 50 * time.Millisecond}, held: NewMessageBudget(maxLongest)}
	over := make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(over)
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		ws.SetReadLimit(MaxMessage)
		c := &conn{server: s, ws: ws, room: make(chan struct{}, maxCalls), owed: make(chan struct{}, maxOwed)}
		c.serve(t.Context())
		c.calls.Wait()
	}))
	defer web.Close()
	// Before it connects: when a window shrinks, the kernel drops data already sent, including acknowledgements.
	few := &net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) })
		return errors.Join(err, failed)
	}}
	small := &http.Client{Transport: &http.Transport{DialContext: few.DialContext}}
	ws, _, err := websocket.Dial(t.Context(), web.URL, &websocket.DialOptions{HTTPClient: small}) //nolint:bodyclose // the library has it
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	text := []byte(`{"seq_id":1,"action":"` + strings.Repeat("x", 4000) + `","data":{}}`) // its answer is as long
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for err == nil {
		err = ws.Write(ctx, websocket.MessageText, text)
	}
	<-over
	if ctx.Err() != nil {
		t.Error("it has not been cut off in a minute")
	}
}
