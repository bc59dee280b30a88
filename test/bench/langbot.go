// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sync/errgroup"
)

// langbotOwner is the owner of the directories in boxes for LangBot.
const langbotOwner = 4243

// langbot is a client of the LangBot protocol with one call at a time.
type langbot struct {
	ws  *websocket.Conn
	seq int
}

func dialLangBot(ctx context.Context, address string) (*langbot, error) {
	ws, _, err := websocket.Dial(ctx, "ws://"+address+"/rpc/ws", &websocket.DialOptions{HTTPHeader: http.Header{"X-Langbot-Instance-Id": {"bench"}}}) //nolint:bodyclose // the library has it
	if err != nil {
		return nil, err
	}
	ws.SetReadLimit(-1)
	return &langbot{ws: ws}, nil
}

// request makes one call.
func (l *langbot) request(ctx context.Context, action, data string, tenant bool) error {
	l.seq++
	text := fmt.Sprintf(`{"seq_id":%d,"action":%q,"data":%s`, l.seq, action, data)
	if tenant {
		text += `,"context":{"instance_uuid":"bench","workspace_uuid":"w","placement_generation":1}`
	}
	if err := l.ws.Write(ctx, websocket.MessageText, []byte(text+"}")); err != nil {
		return err
	}
	_, answer, err := l.ws.Read(ctx)
	if err != nil {
		return err
	}
	var r struct {
		Code    int
		Message string
		Data    struct{ Status string }
	}
	if err := json.Unmarshal(answer, &r); err != nil {
		return err
	}
	if r.Code != 0 || action == "box_exec" && r.Data.Status != "completed" {
		return fmt.Errorf("%s: %s", action, r.Message)
	}
	return nil
}

func langbotExec(session string) string {
	return fmt.Sprintf(`{"session_id":%q,"cmd":"true"}`, session)
}

// langbotCases measures LangBot's most frequent calls, next to the cost of its command without a box.
func (b *bench) langbotCases(ctx context.Context) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // a free port
	if err != nil {
		return err
	}
	b.langbot = ln.Addr().String()
	if err := ln.Close(); err != nil {
		return err
	}
	if _, err := b.startDaemon(ctx, "l", 1, fmt.Sprintf("[sessions]\nmax = 1024\nmax_per_owner = 1024\n[principals.langbot]\nrole = \"user\"\nuid = %d\n[langbot]\nlisten = %q\ninsecure = true\n",
		langbotOwner, b.langbot)); err != nil {
		return err
	}
	l, err := dialLangBot(ctx, b.langbot)
	if err != nil {
		return err
	}
	if err := l.request(ctx, "box_init", `{"limits":{"max_sessions":1000}}`, false); err != nil {
		return err
	}
	// The profile read by a login shell of this host is not that of a box: so also without a login shell.
	for name, flag := range map[string]string{"a login shell of this host": "-lc", "a shell": "-c"} {
		if err := b.addCommand(ctx, "LangBot: true by "+name+", without a box", "/bin/sh", flag, "true"); err != nil {
			return err
		}
	}
	b.add("LangBot: box_exec of true in a live session", timed(func() error { return l.request(ctx, "box_exec", langbotExec("s"), true) }))
	b.add("LangBot: box_get_backend_info", timed(func() error { return l.request(ctx, "box_get_backend_info", "{}", false) }))
	return nil
}

// langbotCrowd measures many concurrent sessions of one LangBot Workspace, and the cost of counting them.
func (b *bench) langbotCrowd(ctx context.Context, out io.Writer, sessions int) error {
	for _, n := range []int{20, 200} {
		start := time.Now()
		var all errgroup.Group
		for i := range n {
			all.Go(func() error {
				l, err := dialLangBot(ctx, b.langbot)
				if err != nil {
					return err
				}
				defer l.ws.CloseNow()
				return l.request(ctx, "box_exec", langbotExec(fmt.Sprint("p", i)), true)
			})
		}
		if err := all.Wait(); err != nil {
			return fmt.Errorf("%d at once: %w", n, err)
		}
		fmt.Fprintf(out, "LangBot: %d box_exec at once, each in a session of its own that is made or there: all succeed, %v\n", n, time.Since(start).Round(time.Millisecond))
	}
	l, err := dialLangBot(ctx, b.langbot)
	if err != nil {
		return err
	}
	defer l.ws.CloseNow()
	for i := range sessions {
		if err := l.request(ctx, "box_create_session", fmt.Sprintf(`{"session_id":"c%d"}`, i), true); err != nil {
			return err
		}
	}
	var times []time.Duration
	for range 50 {
		elapsed, err := timed(func() error { return l.request(ctx, "box_status", "{}", true) })()
		if err != nil {
			return err
		}
		times = append(times, elapsed)
	}
	slices.Sort(times)
	fmt.Fprintf(out, "LangBot: box_status with %d sessions and more: median %v, most %v\n", sessions, times[len(times)/2], times[len(times)-1])
	return l.request(ctx, "box_shutdown", "{}", false)
}
