// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"fmt"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/access"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/quota"
)

// admitted asks for a session with this wait; 0 does not wait.
func admitted(t *testing.T, v *Supervisor, caller access.Principal, id string, memory quantity.Size, cpus float64, wait time.Duration) error {
	t.Helper()
	cfg := v.cfg.Load()
	w := wanted(caller, &policy.Request{ID: id, Wait: new(quantity.Duration(wait))}, cfg)
	w.settings.Memory, w.settings.CPUs = memory, cpus
	_, _, err := v.admit(t.Context(), w)
	return err
}

func TestACapacityRefusalNamesWhoUsesTheCapacity(t *testing.T) {
	t.Parallel()
	v := bare(t)
	cfg := policy.DefaultConfig()
	cfg.Sessions.Max = 8
	b := policy.NoPolicy()
	b.Principals, b.Memory, b.CPUs = []string{"uid:1"}, 4*quantity.GiB, 4
	cfg.Policies["ci"] = b
	b = policy.NoPolicy()
	b.Principals, b.Sessions = []string{"uid:2"}, 2
	cfg.Policies["few"] = b
	v.cfg.Store(&cfg)
	one, two := access.Principal{Name: "uid:1", UID: 1, Role: access.User}, access.Principal{Name: "uid:2", UID: 2, Role: access.User}
	root := access.Principal{Name: "uid:0", Role: access.Admin}
	for i, size := range []quantity.Size{2 * quantity.GiB, quantity.GiB, 256 * quantity.MiB, 256 * quantity.MiB} {
		if err := admitted(t, v, one, fmt.Sprint("w", i), size, 0.5, 0); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		if err := admitted(t, v, two, fmt.Sprint("f", i), quantity.MiB, 1, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		who    access.Principal
		memory quantity.Size
		cpus   float64
		want   string
	}{
		{one, quantity.GiB, 1, "no room for 1 GiB of memory: your boxes reserve 3.5 GiB of 4 GiB, 512 MiB left (policy.ci.total_memory); held by w0 (2 GiB), w1 (1 GiB), w2 (256 MiB), 1 more"},
		{one, quantity.MiB, 2.5, "no room for 2.5 CPUs: your boxes reserve 2 of 4, 2 left (policy.ci.total_cpus); held by w0 (0.5), w1 (0.5), w2 (0.5), 1 more"},
		{one, 5 * quantity.GiB, 1, "memory = 5GiB: all your boxes together may have 4GiB (policy.ci.total_memory)"},
		{two, quantity.MiB, 1, "you have 2 of 2 sessions (policy.few.sessions); held by f0, f1"},
	} {
		if err := admitted(t, v, tc.who, "more", tc.memory, tc.cpus, 0); err == nil || err.Error() != tc.want {
			t.Errorf("%v, want %s", err, tc.want)
		}
	}
	cfg2 := cfg
	cfg2.Sessions.Max = 6
	v.cfg.Store(&cfg2)
	for who, want := range map[access.Role]string{
		access.User:     "boxd has 6 of 6 sessions, 4 of them yours (sessions.max); held by you (4), others (2)",
		access.Operator: "boxd has 6 of 6 sessions, 4 of them yours (sessions.max); held by you (4), uid:2 (2)",
	} {
		one.Role = who
		if err := admitted(t, v, one, "more", quantity.MiB, 0.1, 0); err == nil || err.Error() != want {
			t.Errorf("role %v: %v, want %s", who, err, want)
		}
	}
	v.pressed.Store(&verdict{time.Now().Add(time.Hour), shortOf(quota.Memory, 300*quantity.MiB, 512*quantity.MiB)})
	const want = "no room for 1 GiB of memory: the host is short of memory: 300 MiB free, and 512 MiB must stay free (host.keep_free_memory); held by uid:1 (3.5 GiB), uid:2 (2 MiB)"
	if err := admitted(t, v, root, "more", quantity.GiB, 1, 0); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// A request does not wait if no session that holds the room runs anything, and none ends by itself in time.
func TestNoRequestQueuesForCapacityThatNothingWillRelease(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		ttl     time.Duration
		unused  time.Duration // how long it was not used
		refused bool
	}{
		{"unused for longer than the wait", time.Hour, time.Minute, true},
		{"used just now", time.Hour, 0, false},
		{"about to end", 70 * time.Second, time.Minute, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			v := bare(t)
			s := ready(t, v, "s", tc.ttl, time.Now().Add(-tc.unused))
			w := wanted(s.Owner, &policy.Request{ID: "more"}, v.cfg.Load())
			v.mu.Lock()
			defer v.mu.Unlock()
			if got := v.futileLocked(w, true, quota.Owner, 20*time.Second); got != tc.refused {
				t.Errorf("futile: %v, want %v", got, tc.refused)
			}
			if v.futileLocked(w, true, quota.Starts, 20*time.Second) || v.futileLocked(w, true, quota.Owner, time.Millisecond) {
				t.Error("a limit that is over in a moment counts as futile to wait for")
			}
		})
	}
}
