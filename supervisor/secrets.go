// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"log/slog"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/client"
	"github.com/boxd-dev/boxd/isolation/egress"

	"github.com/boxd-dev/boxd/supervisor/driver"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// SecretsConfig is the configuration of Secrets.
type SecretsConfig struct {
	Dir         *os.Root // boxd's state directory, where the authority is kept
	Credentials string   // systemd's credentials directory; "": none
	Boxes       *driver.Driver
	Log         *slog.Logger
}

// Secrets gives sessions secrets that they never see: their programs have placeholders, and boxnames substitutes the values in
// requests to the hosts they are meant for. No value is on disk, in a record or in an error. It is safe for concurrent use. A
// nil Secrets has none.
type Secrets struct {
	cfg SecretsConfig

	mu      sync.Mutex // guards the fields below
	auth    *authority // nil: not needed yet
	holders map[string]*secretHolder
}

// secretHolder is a session with secrets.
type secretHolder struct {
	session *session.Session
	giveMu  sync.Mutex        // guards the field below
	given   [sha256.Size]byte // hash of what its box was given
}

// bundleName is the CA bundle, relative to their home, that programs of a box with secrets are told to trust.
const bundleName = ".boxd/ca-certificates.crt"

// OpenSecrets returns the Secrets of a configuration.
func OpenSecrets(cfg SecretsConfig) *Secrets {
	return &Secrets{cfg: cfg, holders: map[string]*secretHolder{}}
}

// Begin refuses a session whose secrets cannot be read, before anything is created for it.
func (d *Secrets) Begin(s *session.Session) error {
	list := s.Current().Secrets
	if len(list) == 0 || d == nil {
		return nil
	}
	all := s.Config().Secrets
	for _, name := range list {
		conf, ok := all[name]
		if !ok {
			continue // removed from the configuration meanwhile
		}
		_, err := d.value(&conf)
		if err == nil {
			_, err = authorities(&conf)
		}
		if err != nil {
			d.cfg.Log.Error("cannot read a secret", "secret", name, "error", err)
			f := fault.Errorf(fault.Unavailable, "cannot read the secret %s", fault.Show(name)).WithHint("the reason is in the log of boxd: journalctl -u boxd")
			f.Field, f.Value = policy.FieldSecrets, name
			return f
		}
	}
	_, err := d.authority()
	return err
}

// Give gives a session its secrets, before anything has run in its box.
func (d *Secrets) Give(ctx context.Context, s *session.Session, box *client.Box) error {
	if len(s.Current().Secrets) == 0 || d == nil {
		return nil
	}
	d.restore(s)
	auth, err := d.authority()
	if err != nil {
		return err
	}
	return writeBundle(ctx, box, path.Join(s.Home(), bundleName), auth.pem())
}

// restore gives an adopted session its secrets, before anything else is done with its box.
func (d *Secrets) restore(s *session.Session) {
	if len(s.Current().Secrets) == 0 || d == nil {
		return
	}
	d.mu.Lock()
	h := &secretHolder{session: s}
	d.holders[s.Key] = h
	d.mu.Unlock()
	d.give(h)
}

// Forget drops the secrets of a session that has ended.
func (d *Secrets) Forget(key string) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.holders, key)
}

// review gives living sessions what the configuration and the files say now. Of a box whose secrets differ, connections are cut.
func (d *Secrets) review() {
	if d == nil {
		return
	}
	d.mu.Lock()
	list := make([]*secretHolder, 0, len(d.holders))
	for _, h := range d.holders {
		list = append(list, h)
	}
	d.mu.Unlock()
	for _, h := range list {
		d.give(h)
	}
}

func (d *Secrets) authority() (*authority, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.auth != nil {
		return d.auth, nil
	}
	var err error
	d.auth, err = openAuthority(d.cfg.Dir, time.Now())
	return d.auth, err
}

// give gives the box of a session the secrets it may have now. It loses those that it may no longer have, or that cannot be
// read: then the placeholder is sent unchanged.
func (d *Secrets) give(h *secretHolder) {
	h.giveMu.Lock()
	defer h.giveMu.Unlock()
	s := h.session
	m := &egress.Secrets{Key: s.BoxKey()}
	auth, err := d.authority()
	var env map[string]string
	if err == nil {
		m.List, env = d.list(s, auth)
	}
	var hosts []egress.Name
	for i := range m.List {
		hosts = append(hosts, m.List[i].Hosts...)
	}
	if len(hosts) > 0 {
		slices.Sort(hosts)
		m.Certificate, m.PrivateKey, err = auth.leaf(slices.Compact(hosts), time.Now())
	}
	if err != nil {
		d.cfg.Log.Error("a session no longer has its secrets", "session", s.ID, "error", err)
		m.List = nil
	}
	s.SetGiven(env)
	body, err := json.Marshal(m.List)
	if err != nil {
		m.List = nil
	}
	sum := sha256.Sum256(body)
	if h.given == sum {
		return
	}
	h.given = sum
	d.cfg.Boxes.SetSecrets(m)
	if !d.holds(h) { // it has ended meanwhile
		d.cfg.Boxes.SetSecrets(&egress.Secrets{Key: m.Key})
	}
}

func (d *Secrets) holds(h *secretHolder) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.holders[h.session.Key] == h
}

// list returns the secrets a session may have now, and the environment variables of its programs.
func (d *Secrets) list(s *session.Session, auth *authority) (list []egress.Secret, env map[string]string) {
	cfg, now := s.Config(), s.Current()
	effective := cfg.PolicyOf(s.Owner)
	env = map[string]string{}
	for _, name := range policy.Trusting() {
		if !slices.Contains(now.EnvNames, name) {
			env[name] = path.Join(now.HomeDir(), bundleName)
		}
	}
	for _, name := range now.Secrets {
		conf, ok := cfg.Secrets[name]
		if !ok || !effective.MayHave(name) {
			d.cfg.Log.Warn("a session no longer has a secret", "session", s.ID, "secret", name)
			continue
		}
		mark := auth.placeholder(s.Key, s.Created, name)
		env[conf.Env] = mark
		value, err := d.value(&conf)
		var roots string
		if err == nil {
			roots, err = authorities(&conf)
		}
		if err != nil {
			d.cfg.Log.Error("a session no longer has a secret: it cannot be read", "session", s.ID, "secret", name, "error", err)
			continue
		}
		list = append(list, egress.Secret{Placeholder: mark, Value: value, Hosts: conf.Names(), Authorities: roots})
	}
	return list, env
}
