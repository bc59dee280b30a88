// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
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

// A client that keeps sending requests and reads no answers is disconnected at the timeout, and its pending requests are canceled.
func TestAClientThatTakesNoAnswersIsCutOff(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(over)
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		ws.SetReadLimit(MaxMessage)
		c := &Conn{WS: ws, Budget: NewMessageBudget(1), Patience: 50 * time.Millisecond, Answer: func(_ context.Context, r *Request, reply func([]byte)) { reply(Success(r.Seq, r.Action)) }}
		c.Serve(t.Context())
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
		t.Error("the client was not disconnected within a minute")
	}
}
