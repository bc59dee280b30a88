// SPDX-License-Identifier: Apache-2.0

package mcphost

import (
	"context"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// Labels of the box of a server: how far it has come, for who asks boxd and not boxctl.
const (
	LabelServer  = "mcp.server"  // its name, and that of its process
	LabelPhase   = "mcp.phase"   // dependencies, process, handshake or run time
	LabelAttempt = "mcp.attempt" // in that phase, from 1
	LabelSince   = "mcp.since"   // when that began, RFC 3339
	LabelHealth  = "mcp.health"  // since the handshake: "ok", or how many pings had no answer
	LabelStderr  = "mcp.stderr"  // the last line that what has failed has written
)

// maxWords bounds what a label has of a line, in bytes: with its name it is within what boxd takes.
const maxWords = 200

// record says in the labels of a box what becomes of its server. It is for people, and nothing depends on it.
type record struct {
	client *client.Client
	id     string // "" until there is a box
	labels map[string]string
	mute   bool // it is not written: it could not be, which was said, or a box of a template may have several servers
	stderr io.Writer
}

func newRecord(o *Options) *record {
	return &record{client: o.Client, stderr: o.Stderr, mute: o.Ask.Template != "", labels: map[string]string{LabelServer: LastLine(o.Name)}}
}

// phase is told when the server comes to the next one, or tries anew what has failed with some words.
func (r *record) phase(ctx context.Context, name string, attempt int, words string) {
	r.labels[LabelPhase], r.labels[LabelAttempt], r.labels[LabelSince] = name, strconv.Itoa(attempt), time.Now().UTC().Format(time.RFC3339)
	delete(r.labels, LabelStderr)
	if words = LastLine(words); words != "" {
		r.labels[LabelStderr] = words
	}
	r.write(ctx)
}

// health is told what has become of pings.
func (r *record) health(ctx context.Context, how string) {
	if r.labels[LabelHealth] == how {
		return
	}
	r.labels[LabelHealth] = how
	r.write(ctx)
}

// write keeps all other labels as they are.
func (r *record) write(ctx context.Context) {
	if r.id == "" || r.mute {
		return
	}
	s, err := r.client.Session(ctx, r.id)
	if err == nil {
		labels := maps.Clone(s.Labels)
		maps.DeleteFunc(labels, func(name, _ string) bool { return name == LabelStderr })
		if labels == nil {
			labels = map[string]string{}
		}
		maps.Copy(labels, r.labels)
		_, err = r.client.ChangeSession(ctx, r.id, &api.SessionChange{Labels: labels})
	}
	if err != nil && ctx.Err() == nil {
		r.mute = true
		fmt.Fprintf(r.stderr, "boxctl: cannot record the phase of the server: %v\n", err)
	}
}

// LastLine is the end of a text as a label can have it.
func LastLine(text string) string {
	text = strings.TrimSpace(text)
	text = text[strings.LastIndexByte(text, '\n')+1:]
	text = strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > maxWords {
		text = strings.ToValidUTF8(text[:maxWords], "")
	}
	return text
}
