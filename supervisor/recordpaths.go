// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"encoding/base64"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Paths of mounts are bytes, and records are JSON, which has only text: a path that is not UTF-8 is written as base64 after a NUL
// byte, which no path has.

// toText replaces a path that is not UTF-8 by a text that says what it is.
func toText(path *string) {
	if !utf8.ValidString(*path) {
		*path = "\x00" + base64.StdEncoding.EncodeToString([]byte(*path))
	}
}

// fromText is the reverse of toText. A damaged text stays as it is: it is no path, and every use of it fails.
func fromText(path *string) {
	if text, ok := strings.CutPrefix(*path, "\x00"); ok {
		if data, err := base64.StdEncoding.DecodeString(text); err == nil {
			*path = string(data)
		}
	}
}

// inText returns the record for JSON: itself, or a copy with paths as toText has them.
func (r *Record) inText() *Record {
	c := *r
	c.Settings.Mounts, c.Settings.Inputs, c.Live = slices.Clone(c.Settings.Mounts), slices.Clone(c.Settings.Inputs), slices.Clone(c.Live)
	if c.Mounting != nil {
		c.Mounting = new(*c.Mounting)
	}
	if c.Shared != nil {
		c.Shared = new(*c.Shared)
		c.Shared.Places, c.Shared.Created = slices.Clone(c.Shared.Places), slices.Clone(c.Shared.Created)
	}
	if c.Stopped != nil {
		c.Stopped = new(*c.Stopped)
		c.Stopped.Mounts = slices.Clone(c.Stopped.Mounts)
	}
	if c.Again != nil {
		c.Again = new(*c.Again)
		c.Again.Mounts = slices.Clone(c.Again.Mounts)
	}
	c.paths(toText)
	return &c
}

// paths calls f with each path that a caller has named, or that follows from such a one.
func (r *Record) paths(f func(*string)) {
	mount := func(m *policy.Mount) {
		f(&m.Source)
		f(&m.Target)
	}
	mounts := func(list []policy.Mount) {
		for i := range list {
			mount(&list[i])
		}
	}
	mounts(r.Settings.Mounts)
	for i := range r.Settings.Inputs {
		f(&r.Settings.Inputs[i].Target)
	}
	for i := range r.Live {
		mount(&r.Live[i].Mount)
		f(&r.Live[i].Made)
	}
	if r.Mounting != nil {
		mount(&r.Mounting.Mount)
		f(&r.Mounting.Missing)
	}
	if r.Shared != nil {
		r.Shared.paths(f)
	}
	for _, again := range []*session.Again{r.again(), r.Again} {
		if again != nil {
			mounts(again.Mounts)
		}
	}
}

// again is what a stopped session is given when it starts, nil if it is not stopped.
func (r *Record) again() *session.Again {
	if r.Stopped == nil {
		return nil
	}
	return &r.Stopped.Again
}

func (h *hostMounts) paths(f func(*string)) {
	real := make(map[string]string, len(h.Real))
	for source, at := range h.Real {
		f(&source)
		f(&at)
		real[source] = at
	}
	if h.Real != nil {
		h.Real = real
	}
	for i := range h.Places {
		f(&h.Places[i])
	}
	for i := range h.Created {
		g := &h.Created[i]
		for _, p := range []*string{&g.Source, &g.Real, &g.At, &g.Made, &g.Target} {
			f(p)
		}
	}
}
