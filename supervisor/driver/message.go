// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation/egress"
)

// secrets replaces the secrets that the proxy puts into a box's requests. They are kept here for the next proxy, until they are
// replaced; an empty list means none.
func (d *Resolver) secrets(m *egress.Secrets) {
	d.handOverMu.Lock() // or it could be sent before the one it replaces
	defer d.handOverMu.Unlock()
	d.mu.Lock()
	had := d.puts[m.Key] != nil
	d.puts[m.Key] = m
	if len(m.List) == 0 {
		delete(d.puts, m.Key)
	}
	var at *fdpass.Conn
	if e := d.boxes[m.Key]; e != nil {
		at = e.at
	}
	d.mu.Unlock()
	if at != nil && (had || len(m.List) > 0) {
		_ = sendSecrets(at, m) // a proxy that misses it is gone, and the next one gets it at the start
	}
}

func sendSecrets(conn *fdpass.Conn, m *egress.Secrets) error {
	if m == nil {
		return nil
	}
	body, err := egress.Encode(&egress.Request{Secrets: m})
	if err != nil {
		return err
	}
	return conn.Send(body)
}

// sendRemove removes a box from a proxy. A proxy that misses it is gone.
func sendRemove(conn *fdpass.Conn, key string) {
	if body, err := egress.Encode(&egress.Request{Remove: key}); err == nil {
		_ = conn.Send(body)
	}
}

func (b *ResolverBox) message(key string) *egress.Box {
	m := &egress.Box{Key: key, Strict: b.Strict, Reach: b.Reach, Rules: []egress.Spec{}}
	for _, r := range b.Rules.All() {
		m.Rules = append(m.Rules, r.Spec())
	}
	return m
}
