// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/limits"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// seen is the output of a session's box, with fewer mount lines.
const seen = `ns ipc ipc:[4026532181]
ns mnt mnt:[4026532179]
ns net net:[4026532183]
ns pid pid:[4026532182]
ns user user:[4026532178]
ns uts uts:[4026532180]
dev Inter-|   Receive                                                |  Transmit
dev  face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
dev     lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0
mnt 44 43 0:39 / / ro,nosuid,noexec,relatime - tmpfs tmpfs rw,size=16384k,mode=755
mnt 45 44 254:0 /usr /usr ro,nosuid,nodev,relatime - ext4 /dev/vda rw,discard
mnt 53 44 0:40 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw,hidepid=ptraceable
mnt 55 44 254:0 /srv /workspace rw,nosuid,nodev,relatime,idmapped - ext4 /dev/vda rw,discard
mnt 57 44 0:43 / /dev/pts rw,nosuid,noexec,relatime - devpts devpts rw,mode=620,ptmxmode=666,max=64
mnt 73 44 0:44 / /tmp rw,nosuid,nodev,relatime - tmpfs tmpfs rw,size=262144k,nr_inodes=65536,mode=755
work
end
`

func TestABoxIsAttestedFromInside(t *testing.T) {
	t.Parallel()
	fine := Proof{Available: true, Namespaces: true, Mounts: true, Network: true, Ephemeral: true, Work: true}
	for name, tc := range map[string]struct {
		from, to string
		change   func(*Proof)
	}{
		"as it should be":              {"", "", func(*Proof) {}},
		"the network of the host":      {"net:[4026532183]", "net:[1]", func(p *Proof) { p.Namespaces, p.Network = false, false }},
		"the processes of the host":    {"pid:[4026532182]", "pid:[1]", func(p *Proof) { p.Namespaces = false }},
		"the mounts of the host":       {"mnt:[4026532179]", "mnt:[1]", func(p *Proof) { p.Namespaces, p.Mounts = false, false }},
		"a namespace that is not told": {"ns uts uts:[4026532180]\n", "", func(p *Proof) { p.Namespaces = false }},
		"one that cannot be read":      {"uts:[4026532180]", "", func(p *Proof) { p.Namespaces = false }},
		"another device":               {"dev     lo:", "dev   eth0: 1\ndev     lo:", func(p *Proof) { p.Network = false }},
		"a tunnel that idles":          {"dev     lo:", "dev   sit0: 0 0 0\ndev     lo:", func(*Proof) {}},
		"a tunnel in use":              {"dev     lo:", "dev   sit0: 0 10 0\ndev     lo:", func(p *Proof) { p.Network = false }},
		"no devices at all":            {"dev     lo:", "dev     lo", func(p *Proof) { p.Network = false }},
		"a root to write to":           {"/ / ro,", "/ / rw,", func(p *Proof) { p.Mounts, p.Ephemeral = false, false }},
		"a disk of the host":           {"/usr ro,", "/usr rw,", func(p *Proof) { p.Ephemeral = false }},
		"a tmpfs without a size":       {"size=262144k,", "", func(p *Proof) { p.Ephemeral = false }},
		"a tmpfs of any size":          {"size=262144k,", "size=0,", func(p *Proof) { p.Ephemeral = false }},
		"a tmpfs of any number":        {"nr_inodes=65536,", "", func(p *Proof) { p.Ephemeral = false }},
		"terminals without end":        {",max=64", "", func(p *Proof) { p.Ephemeral = false }},
		"what is no line of mounts":    {"mnt 73 44 0:44 / /tmp rw", "mnt x", func(p *Proof) { p.Ephemeral = false }},
		"a workspace to read":          {"work\n", "", func(p *Proof) { p.Work = false }},
		"half a text":                  {"end\n", "", func(p *Proof) { *p = Proof{Work: true} }},
	} {
		want := fine
		tc.change(&want)
		var got Proof
		got.readOutput(strings.Replace(seen, tc.from, tc.to, 1), func(kind string) string { return kind + ":[1]" })
		if got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	var got Proof
	if got.readOutput(seen, func(string) string { return "" }); got.Namespaces || got.Mounts || got.Network {
		t.Errorf("the directory of boxd itself: got %+v, want got.Namespaces == false and got.Mounts == false and got.Network == false",
			got)
	}
}

func FuzzJudge(f *testing.F) {
	f.Add(seen)
	f.Fuzz(func(t *testing.T, text string) {
		var p Proof
		p.readOutput(text, func(kind string) string { return kind + ":[1]" })
		if (p.Ephemeral || p.Mounts || p.Network || p.Namespaces) && !p.Available {
			t.Fatalf("p = %+v, want p.Ephemeral == false and p.Mounts == false and p.Network == false and p.Namespaces == false or p.Available == true",
				p)
		}
	})
}

// A lack of capacity is no result about isolation, and so none about the directory either.
func TestAnAttestationWithoutCapacityProvesNothing(t *testing.T) {
	t.Parallel()
	broken := fault.Errorf(fault.Denied, "not lent")
	for name, tc := range map[string]struct {
		err  error
		full bool
	}{
		"as many as may be":    {fault.Errorf(fault.Exhausted, "all taken"), true},
		"memory is short":      {fault.Errorf(fault.Unavailable, "the host has 1 MiB of memory left"), true},
		"the time is over":     {fmt.Errorf("wait: %w", context.DeadlineExceeded), true},
		"it may not be had":    {broken, false},
		"it cannot be started": {errors.New("start: no"), false},
	} {
		if full(tc.err) != tc.full {
			t.Errorf("%s: full is %v, want full(tc.err) == tc.full", name, !tc.full)
		}
		var asked []string
		s, p := tried("/srv/box", func(work string) (*session.Session, error) {
			asked = append(asked, work)
			return nil, tc.err
		})
		want := []string{"/srv/box", ""}
		if tc.full {
			want = want[:1]
		}
		if s != nil || p.Full != tc.full || p.Available || p.Error == "" || !slices.Equal(asked, want) {
			t.Errorf("%s: %+v, requested %q", name, p, asked)
		}
	}
	some := new(session.Session)
	s, p := tried("/srv/box", func(work string) (*session.Session, error) {
		if work == "" {
			return some, nil
		}
		return nil, broken
	})
	if s != some || p.Full || !strings.Contains(p.Error, "not lent") {
		t.Errorf(`a directory that cannot be had: p = %+v, want s == some and p.Full == false and p.Error containing "not lent"`,
			p)
	}
	if _, p = tried("/srv/box", func(work string) (*session.Session, error) {
		if work == "" {
			return nil, fault.Errorf(fault.Unavailable, "others are waiting longer")
		}
		return nil, broken
	}); !p.Full {
		t.Errorf("no capacity for the second session: p = %+v, want p.Full == true", p)
	}
}

func TestAnAttestationBoxDoesNotQueueForCapacity(t *testing.T) {
	t.Parallel()
	var req policy.Request
	if passing(&req); !req.OneShot || req.Wait == nil || *req.Wait != 0 {
		t.Errorf("req = %+v, want req.OneShot == true and req.Wait != nil and *req.Wait == 0", req)
	}
}

// The profile's quota applies if a request has none, so removing a quota needs an explicit zero.
func TestAnUnlimitedQuotaIsRequestedExplicitly(t *testing.T) {
	t.Parallel()
	mount := policy.Mount{Source: "/srv/q/a", Target: isolation.Workspace, Mode: policy.MountReadWrite}
	can, cannot := func(string) error { return nil }, func(dir string) error { return errors.New(dir) }
	c := policy.DefaultConfig()
	c.Roots = []string{"/srv/q"}
	for _, asked := range []*quantity.Size{nil, new(8 * quantity.MiB)} {
		req := &policy.Request{Network: new(policy.NetworkOff), ReadOnlyRoot: new(true), Patch: limits.Patch{WorkspaceQuota: asked}, Mounts: []policy.Mount{mount}}
		if s, _, err := c.Merge(req); err != nil || s.WorkspaceQuota == 0 || len(s.Bounded) != 1 {
			t.Fatalf("s = %+v, err = %v, want no error and s.WorkspaceQuota != 0 and len(s.Bounded) == 1", s, err)
		}
		soft, locked := &Admitted{Namespace: "ws-0", Work: "/srv/q", Soft: true}, func() bool { return false }
		for _, a := range []*Admitted{nil, {Work: "/srv/q"}} {
			if err := a.relaxQuota(req, locked, cannot); err != nil || req.WorkspaceQuota != asked {
				t.Errorf("the quota was dropped although it is required: req.WorkspaceQuota = %v, err = %v, want no error and req.WorkspaceQuota == %v",
					req.WorkspaceQuota, err, asked)
			}
		}
		if err := soft.relaxQuota(req, locked, can); err != nil || req.WorkspaceQuota != asked {
			t.Errorf("the quota was dropped although it can be enforced: req.WorkspaceQuota = %v, err = %v, want no error and req.WorkspaceQuota == %v",
				req.WorkspaceQuota, err, asked)
		}
		if err := soft.relaxQuota(req, locked, cannot); err == nil || err.Error() != "/srv/q/tenants/ws-0" {
			t.Error(err)
		}
		if s, _, err := c.Merge(req); err != nil || s.WorkspaceQuota != 0 || len(s.Bounded) != 0 {
			t.Errorf("a quota is left: s = %+v, err = %v, want no error and s.WorkspaceQuota == 0 and len(s.Bounded) == 0",
				s, err)
		}
		p := c.Profiles[c.Sessions.DefaultProfile]
		p.Locked = append(slices.Clone(p.Locked), "workspace_quota")
		held := c
		held.Profiles = map[string]policy.Profile{c.Sessions.DefaultProfile: p}
		unbound(req, true, cannot)
		if _, _, err := held.Merge(req); err != nil || req.WorkspaceQuota != nil {
			t.Errorf("with a profile that locks the quota: err = %v, want no error and req.WorkspaceQuota == nil",
				err)
		}
		for _, of := range []func(string) error{can, cannot} { // boxes maintaining directories of many Workspaces have none in either case
			if unbound(req, false, of); req.WorkspaceQuota == nil || *req.WorkspaceQuota != 0 {
				t.Errorf("req.WorkspaceQuota = %v, want req.WorkspaceQuota != nil and *req.WorkspaceQuota == 0",
					req.WorkspaceQuota)
			}
		}
	}
}
