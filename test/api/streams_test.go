// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

const (
	runStream     = "GET /v1/exec/stream"
	execStream    = "GET /v1/sessions/{id}/exec/stream"
	processStream = "GET /v1/sessions/{id}/processes/{p}/stream"
)

// checkedStream is a stream on which every message is checked against the description.
type checkedStream struct {
	*contract
	ws    *websocket.Conn
	kinds map[string]bool // the kinds of control messages received, on all streams
}

func (c *contract) dial(told map[string]bool, route, p string) *checkedStream {
	c.t.Helper()
	_, path, _ := strings.Cut(route, " ")
	client := &http.Client{Transport: &http.Transport{DialContext: boxtest.Dialer(c.Socket, 0)}}
	ws, resp, err := websocket.Dial(c.t.Context(), "ws://boxd"+strings.NewReplacer("{id}", "s", "{p}", url.PathEscape(p)).Replace(path), &websocket.DialOptions{HTTPClient: client})
	if err != nil {
		c.t.Fatal(err)
	}
	if resp.Body != nil {
		resp.Body.Close()
	}
	ws.SetReadLimit(api.MaxOutput)
	c.seen[route+" 101"] = resp.StatusCode == http.StatusSwitchingProtocols
	return &checkedStream{c, ws, told}
}

// sendControl sends a control message verbatim.
func (k *checkedStream) sendControl(message string) {
	k.t.Helper()
	k.is("ClientControl", []byte(message))
	k.sends(api.ChannelControl, message)
}

func (k *checkedStream) sends(channel byte, data string) {
	k.t.Helper()
	if err := k.ws.Write(k.t.Context(), websocket.MessageBinary, append([]byte{channel}, data...)); err != nil {
		k.t.Fatal(err)
	}
}

// readControl reads up to the control message of a kind, and returns that and the output before it.
func (k *checkedStream) readControl(kind string) (msg api.ServerControl, output string) {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), 5*time.Minute) // a stream that stays silent has failed
	defer cancel()
	var out strings.Builder
	for {
		_, data, err := k.ws.Read(ctx)
		if err != nil || len(data) == 0 {
			k.t.Fatalf("no %s: err = %v, want no error and len(data) != 0", kind, err)
		}
		if data[0] != api.ChannelControl {
			out.Write(data[1:])
			continue
		}
		k.is("ServerControl", data[1:])
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(data[1:], &fields); err != nil {
			k.t.Fatal(err)
		}
		for name := range fields {
			k.kinds[name] = true
		}
		if fields[kind] == nil {
			continue
		}
		if err := json.Unmarshal(data[1:], &msg); err != nil {
			k.t.Fatal(err)
		}
		return msg, out.String()
	}
}

func (k *checkedStream) hangUp() { _ = k.ws.CloseNow() } // as any client may

func (c *contract) streams() {
	c.refused(400, "Upgrade", request{route: runStream})
	c.refused(400, "Upgrade", request{route: execStream, s: "s"})
	c.refused(404, "", request{route: execStream, s: "none"})
	told := map[string]bool{}

	k := c.dial(told, execStream, "")
	k.sendControl(`{"start":{"exec":{"argv":["cat"],"timeout":"1m"},"stdin":true}}`)
	k.readControl("started")
	k.sends(api.ChannelStdin, "hello\n")
	_, early := k.readControl("stdin_taken")
	k.sends(api.ChannelStdin, "")
	if msg, output := k.readControl("exit"); early+output != "hello\n" || msg.Exit.Status != "exited" {
		c.t.Errorf(`early = %q, output = %q, msg = %+v, want early + output == "hello\n" and msg.Exit.Status == "exited"`,
			early, output, msg)
	}
	k.hangUp()

	k = c.dial(told, runStream, "")
	k.sendControl(`{"start":{"session":{"memory":"64MiB"},"exec":{"command":"trap 'exit 7' INT; echo up; while :; do sleep 0.1; done"},"terminal":{"rows":24,"cols":80}}}`)
	k.readControl("started")
	k.sendControl(`{"resize":{"rows":50,"cols":132}}`)
	k.sendControl(`{"signal":"SIGKILL"}`)
	if msg, _ := k.readControl("exit"); msg.Exit.Signal != "SIGKILL" {
		c.t.Errorf(`msg.Exit = %+v, want msg.Exit.Signal == "SIGKILL"`, msg.Exit)
	}
	k.hangUp()

	for message, field := range map[string]string{
		`{"start":{"exec":{"argv":["true"],"stdin":"x"}}}`: "start.exec.stdin", `{"start":{"exec":{"argv":[]}}}`: "argv",
		`{"start":{"session":{},"exec":{"argv":["true"]}}}`: "start.session", `{"attach":{}}`: "start",
	} {
		k = c.dial(told, execStream, "")
		k.sendControl(message)
		if msg, _ := k.readControl("error"); msg.Error.Field != field || msg.Error.Allowed == "" {
			c.t.Errorf(`%s: msg.Error = %+v, want msg.Error.Field == %v and msg.Error.Allowed != ""`,
				message, msg.Error, field)
		}
		k.hangUp()
	}
	c.attached(told)
	for kind := range c.doc.Components.Schemas["ServerControl"].Value.Properties {
		if !told[kind] {
			c.t.Errorf("no stream has sent a message of kind %q", kind)
		}
	}
}

// attached attaches to processes.
func (c *contract) attached(told map[string]bool) {
	c.refused(400, "Upgrade", request{route: processStream, s: "s", p: "writer"})
	c.gets(201, request{route: startRoute, s: "s", p: "reader", body: `{"command":"cat; seq 400000","stdin":true,"output":"4KiB"}`})
	first := c.dial(told, processStream, "reader")
	first.sendControl(`{"attach":{"replay":true,"write":true,"lossless":true}}`)
	if msg, _ := first.readControl("attached"); !msg.Attached.Writer {
		c.t.Errorf("msg = %+v, want msg.Attached.Writer == true", msg)
	}
	second := c.dial(told, processStream, "reader")
	defer second.hangUp()
	second.sendControl(`{"attach":{"stdout":0,"stderr":0,"stdin":0,"write":true,"take_over":true,"lines":true,"lossless":true}}`)
	second.readControl("attached")
	first.readControl("writer_lost")
	first.hangUp() // otherwise the program would wait for it
	second.sends(api.ChannelStdin, "a line")
	second.sends(api.ChannelStdin, "")
	if _, output := second.readControl("exit"); !strings.HasPrefix(output, "a line1") {
		c.t.Errorf("output begins with %.20q", output)
	}
	c.ended("reader")
	late := c.dial(told, processStream, "reader")
	defer late.hangUp()
	late.sendControl(`{"attach":{"stdout":0}}`)
	late.readControl("gap")
	late.readControl("exit")
}
