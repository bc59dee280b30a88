// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/quota"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// maxHolders is how many holders of a resource a refusal lists.
const maxHolders = 3

// holder holds a part of an exhausted resource: a session, or all sessions of an owner.
type holder struct {
	name   string
	memory quantity.Size
	cpus   float64
	n      int
}

// holders adds to a refusal who holds the resource, as far as the caller may know: its own sessions by id, and for an operator
// other owners by name.
func (v *Supervisor) holders(w *want, full *quota.Full) *quota.Full {
	rule := ""
	if d := fault.DenialOf(full.Err); d != nil {
		rule = d.Rule
	}
	own, reason := full.Own, full.Reason
	full.Holders = func(wait time.Duration) (string, bool) {
		v.mu.Lock()
		defer v.mu.Unlock()
		list := v.ownersLocked
		if own {
			list = v.holdersLocked
		}
		amount := func(h holder) string { return strconv.Itoa(h.n) }
		by := func(h holder) float64 { return float64(h.n) }
		switch {
		case reason == quota.Memory, strings.HasSuffix(rule, ".total_memory"):
			amount, by = func(h holder) string { return h.memory.Short() }, func(h holder) float64 { return float64(h.memory) }
		case strings.HasSuffix(rule, ".total_cpus"):
			amount, by = func(h holder) string { return strconv.FormatFloat(h.cpus, 'g', 6, 64) }, func(h holder) float64 { return h.cpus }
		case own: // each holder is one session
			amount = func(holder) string { return "" }
		}
		if own && w.effective.Of != nil { // what one tenant has is not disclosed to others
			return "", false
		}
		return listed(list(w.caller), amount, by), v.futileLocked(w, own, reason, wait)
	}
	return full
}

// hostFull adds to a refusal for lack of memory how much was requested, and who holds it. It leaves other refusals as they are.
func (v *Supervisor) hostFull(w *want, err error) error {
	full, ok := errors.AsType[*quota.Full](err)
	if !ok || full.Reason != quota.Memory {
		return err
	}
	f, ok := full.Err.(*fault.Error) //nolint:errorlint // shortOf has made it
	if !ok {
		return err
	}
	g, is := *f, *full
	g.Err = fmt.Errorf("no room for %s of memory: %w", w.settings.Memory.Short(), f.Err)
	is.Err = &g
	return v.holders(w, &is)
}

// listed names the largest holders, and counts the others.
func listed(list []holder, amount func(holder) string, by func(holder) float64) string {
	slices.SortFunc(list, func(a, b holder) int { return cmp.Or(cmp.Compare(by(b), by(a)), cmp.Compare(a.name, b.name)) })
	var words []string
	for _, h := range list[:min(len(list), maxHolders)] {
		if of := amount(h); of != "" {
			words = append(words, h.name+" ("+of+")")
			continue
		}
		words = append(words, h.name)
	}
	if n := len(list) - len(words); n > 0 {
		words = append(words, strconv.Itoa(n)+" more")
	}
	return strings.Join(words, ", ")
}

// holdersLocked lists the sessions of the caller.
func (v *Supervisor) holdersLocked(caller access.Principal) (list []holder) {
	for _, s := range v.sessions {
		if s.Owner.Name == caller.Name {
			settings := s.Current()
			list = append(list, holder{s.ID, settings.Memory, settings.CPUs, 1})
		}
	}
	return list
}

// ownersLocked lists the owners of all sessions that have a box. A caller who may not know the others gets one total for them.
func (v *Supervisor) ownersLocked(caller access.Principal) []holder {
	all := map[string]holder{}
	for _, s := range v.sessions {
		if v.stopped[s] {
			continue
		}
		name := s.Owner.Name
		switch {
		case name == caller.Name:
			name = "you"
		case !caller.Is(access.Operator):
			name = "others"
		}
		h, settings := all[name], s.Current()
		all[name] = holder{name, h.memory + settings.Memory, h.cpus + settings.CPUs, h.n + 1}
	}
	return slices.Collect(maps.Values(all))
}

// futileLocked reports whether, as far as boxd can know, waiting cannot help: none of the sessions in question belongs to a
// client at work, as each is ready, runs nothing, was unused for as long as the wait would be, and does not expire in that
// time.
func (v *Supervisor) futileLocked(w *want, own bool, reason quota.Reason, wait time.Duration) bool {
	if wait < time.Second || reason != quota.Owner && reason != quota.Sessions {
		return false
	}
	now := time.Now()
	for _, s := range v.sessions {
		if own && s.Owner.Name != w.caller.Name || v.stopped[s] {
			continue
		}
		since, idle := s.IdleSince()
		at, _ := s.Expiry()
		if state, _, _ := s.State(); state != session.StateReady || !idle || now.Sub(since) < wait || !at.IsZero() && at.Before(now.Add(wait)) {
			return false
		}
	}
	return true
}
