// SPDX-License-Identifier: Apache-2.0

package boxes

import (
	"strings"
	"testing"
)

// seen is what a box of a session has printed, with less lines of mounts.
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

func TestWhatABoxIsIsReadFromWithin(t *testing.T) {
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
		got.judge(strings.Replace(seen, tc.from, tc.to, 1), func(kind string) string { return kind + ":[1]" })
		if got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	var got Proof
	if got.judge(seen, func(string) string { return "" }); got.Namespaces || got.Mounts || got.Network {
		t.Errorf("it is not known where boxd itself is: %+v", got)
	}
}

func FuzzJudge(f *testing.F) {
	f.Add(seen)
	f.Fuzz(func(t *testing.T, text string) {
		var p Proof
		p.judge(text, func(kind string) string { return kind + ":[1]" })
		if (p.Ephemeral || p.Mounts || p.Network || p.Namespaces) && !p.Available {
			t.Fatalf("%+v", p)
		}
	})
}
