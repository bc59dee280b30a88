// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/relay/api"
)

// Peer is the client's end of a stream, message by message.
type Peer struct {
	WS *websocket.Conn

	t testing.TB
}

// Message is a message from boxd.
type Message struct {
	Channel byte
	Data    []byte             // the rest of the message, after the channel
	Control *api.ServerControl // nil: it is output
	Closed  error              // not nil: this is no message, the stream has ended
}

// Dial opens a stream, which is closed at the end of the test.
func (d *Daemon) Dial(t testing.TB, path string) *Peer {
	t.Helper()
	transport := &http.Transport{DialContext: Dialer(d.Socket, 0)}
	t.Cleanup(transport.CloseIdleConnections)
	ws, _, err := websocket.Dial(t.Context(), "ws://boxd"+path, &websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}}) //nolint:bodyclose // the library has closed it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ws.CloseNow() })
	ws.SetReadLimit(-1)
	return &Peer{ws, t}
}

// DialProcess opens a stream of a process without attaching it yet.
func (d *Daemon) DialProcess(t testing.TB, session, process string) *Peer {
	t.Helper()
	return d.Dial(t, "/v1/sessions/"+session+"/processes/"+process+"/stream")
}

// AttachPeer opens a stream and attaches it to a process.
func (d *Daemon) AttachPeer(t testing.TB, session, process string, attach api.StreamAttach) (*Peer, api.StreamAttached) {
	t.Helper()
	p := d.DialProcess(t, session, process)
	p.Control(api.ClientControl{Attach: &attach})
	m := p.Hear()
	if m.Control == nil || m.Control.Attached == nil {
		t.Fatalf("attach to %q: m = %+v, want m.Control != nil and m.Control.Attached != nil", process, m)
	}
	return p, *m.Control.Attached
}

// Control sends a control message.
func (p *Peer) Control(msg api.ClientControl) {
	p.t.Helper()
	data, err := json.Marshal(msg)
	if err != nil {
		p.t.Fatal(err)
	}
	p.Send(api.ChannelControl, data)
}

// Send sends a message on a channel.
func (p *Peer) Send(channel byte, data []byte) {
	p.t.Helper()
	if err := p.WS.Write(p.t.Context(), websocket.MessageBinary, append([]byte{channel}, data...)); err != nil {
		p.t.Fatal(err)
	}
}

// Hear returns the next message.
func (p *Peer) Hear() Message {
	p.t.Helper()
	_, data, err := p.WS.Read(p.t.Context())
	if err != nil {
		return Message{Closed: err}
	}
	m := Message{Channel: data[0], Data: data[1:]}
	if m.Channel == api.ChannelControl {
		m.Control = &api.ServerControl{}
		if err := json.Unmarshal(m.Data, m.Control); err != nil {
			p.t.Fatalf("%s: %v", data, err)
		}
	}
	return m
}

// Hears reads standard output until it is what was wanted; any other output fails the test.
// Confirmations of input are skipped.
func (p *Peer) Hears(want string) {
	p.t.Helper()
	got := ""
	for len(got) < len(want) {
		m := p.Hear()
		switch {
		case m.Closed == nil && m.Control != nil && m.Control.StdinTaken != 0:
		case m.Closed == nil && m.Control == nil && m.Channel == api.ChannelStdout:
			got += string(m.Data)
		default:
			p.t.Fatalf("after %q: m = %+v, m.Data = %s", got, m, m.Data)
		}
	}
	if got != want {
		p.t.Fatalf("got %q, want %q", got, want)
	}
}

// Next returns the next control message that is no confirmation of input; it skips output before
// it.
func (p *Peer) Next() *api.ServerControl {
	p.t.Helper()
	for {
		m := p.Hear()
		if m.Closed != nil {
			p.t.Fatal(m.Closed)
		}
		if m.Control != nil && m.Control.StdinTaken == 0 {
			return m.Control
		}
	}
}
