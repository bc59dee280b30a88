// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"context"
	"errors"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/session"
)

// Proof is what an inspection of a real box has found.
type Proof struct {
	Available  bool  // a box starts, and runs a program
	Groups     bool  // the kernel limits memory, processors and processes of the box as a whole
	Namespaces bool  // it has namespaces of its own
	Mounts     bool  // it has a mount namespace too, and / is read-only
	Network    bool  // it has no network but its own loopback
	Ephemeral  bool  // everything writable but its workspace is limited in bytes and files
	Work       bool  // LangBot's own directory exists, and boxes can write to it
	Bounded    bool  // the kernel can limit a directory there in bytes and in files
	Unbounded  error // why it cannot
	// Full says that there was no room or no time for the box: nothing is known.
	Full  bool
	Error string // why a check has failed
}

// probeScript prints the properties of a box, with shell builtins where possible.
const probeScript = `for n in ipc mnt net pid user uts; do echo "ns $n $(readlink /proc/self/ns/$n)"; done
while IFS= read -r l; do echo "dev $l"; done </proc/net/dev
while IFS= read -r l; do echo "mnt $l"; done </proc/self/mountinfo
[ -w /workspace ] && echo work
echo end`

// proofTimeout is how long the inspection of a box may take.
const proofTimeout = 10 * time.Second

// Attest starts a box like that of an admitted Workspace, by its spec but with LangBot's own directory in place of the
// Workspace's, and inspects it from within. work is "" if that directory is unknown.
func (b *Boxes) Attest(ctx context.Context, spec *boxSpec, work string) Proof {
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	s, p := tried(work, func(work string) (*session.Session, error) { return b.probeBox(ctx, spec, work) })
	if s == nil {
		return p
	}
	defer b.Sup.End(context.WithoutCancel(ctx), s, session.EndOneShot) //nolint:errcheck // the supervisor goes on with it
	r, err := s.Exec(ctx, &session.ExecRequest{Argv: []string{"/bin/sh", "-c", probeScript}, Dir: s.Home()})
	if err != nil {
		return Proof{Error: err.Error(), Full: full(err)}
	}
	p.readOutput(string(r.Streams[0].Data), ownNamespace)
	by := s.Enforced()
	p.Groups = !slices.ContainsFunc([]string{policy.LimitMemory, policy.LimitCPU, policy.LimitPids}, func(limit string) bool { return by[limit] != policy.MechanismGroup })
	p.Work = p.Work && p.Error == "" && work != ""
	if p.Unbounded = b.Sup.CanBound(path.Join(work, tenants, "any")); p.Unbounded == nil {
		p.Bounded = p.Work
	}
	if !p.Available {
		p.Error = "the test box did not report: " + strings.TrimSpace(string(r.Streams[1].Data))
	}
	return p
}

// full reports whether an error is a lack of room or time, which proves nothing about boxes.
func full(err error) bool {
	kind := fault.KindOf(err)
	return kind == fault.Exhausted || kind == fault.Unavailable || errors.Is(err, context.DeadlineExceeded)
}

// tried starts a box with LangBot's own directory, or without it if it is unusable. If no box starts, the proof says
// why.
func tried(work string, start func(work string) (*session.Session, error)) (*session.Session, Proof) {
	s, err := start(work)
	var p Proof
	if err != nil && work != "" && !full(err) { // is it that directory, or do all boxes fail?
		p.Error = mountError(err, "").Error()
		s, err = start("")
	}
	if err != nil {
		return nil, Proof{Error: mountError(err, "").Error(), Full: full(err)}
	}
	return s, p
}

// probeBox makes a box to inspect. It has no quota, which would apply to the directory of all Workspaces; so its home is
// in memory, while that of a session is on disk if it is limited there.
func (b *Boxes) probeBox(ctx context.Context, spec *boxSpec, work string) (*session.Session, error) {
	owner, err := b.Owner()
	if err != nil {
		return nil, err
	}
	plain := *spec
	plain.HostPath, plain.WorkspaceQuotaMB, plain.Persistent = nil, 0, false
	req, err := b.request("langbot-ready-"+policy.NewID(), &plain, plain.keep())
	if err != nil {
		return nil, err
	}
	passing(req)
	if work != "" {
		return b.withWork(ctx, owner, req, work)
	}
	s, _, err := b.Sup.Create(ctx, owner, req)
	return s, err
}

// passing makes a box short-lived, without waiting for room: the caller needs an answer.
func passing(req *policy.Request) {
	req.OneShot, req.Wait = true, new(quantity.Duration(0))
}

func ownNamespace(kind string) string {
	name, err := os.Readlink("/proc/self/ns/" + kind)
	if err != nil {
		return ""
	}
	return name
}

// readOutput reads what a box has printed. own returns boxd's own namespace of a kind.
func (p *Proof) readOutput(out string, own func(kind string) string) {
	apart, foreign, devices := map[string]bool{}, false, 0
	root, open := false, false
	for line := range strings.Lines(out) {
		kind, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch kind {
		case "ns":
			name, value, _ := strings.Cut(rest, " ")
			has := own(name)
			apart[name] = has != "" && strings.HasPrefix(value, name+":[") && value != has
		case "dev":
			if name, counts, is := strings.Cut(rest, ":"); is && !idleTunnel(strings.TrimSpace(name), counts) {
				devices++
				foreign = foreign || strings.TrimSpace(name) != "lo"
			}
		case "mnt":
			m, ok := mountLine(rest)
			root = root || ok && m.at == "/" && !m.writable
			open = open || !ok || !m.bounded()
		case "work":
			p.Work = true
		case "end":
			p.Available = true
		}
	}
	all := func(kinds ...string) bool {
		return p.Available && !slices.ContainsFunc(kinds, func(kind string) bool { return !apart[kind] })
	}
	p.Namespaces = all("ipc", "mnt", "net", "pid", "user", "uts")
	p.Mounts = all("mnt") && root
	p.Network = all("net") && !foreign && devices == 1
	p.Ephemeral = p.Available && root && !open
}

// idleTunnel reports whether a device is one of those that the kernel makes in every network namespace where their module is
// loaded, unless net.core.fb_tunnels_only_for_init_net says otherwise (Documentation/admin-guide/sysctl/net.rst), and
// nothing has gone through it: no program in a box can bring it up.
func idleTunnel(name, counts string) bool {
	known := []string{"tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "sit0", "ip6tnl0", "ip6gre0", "ip6_vti0"}
	return slices.Contains(known, name) && !strings.ContainsAny(counts, "123456789")
}

// mount is a line of mountinfo.
type mount struct {
	at, kind, options string
	writable          bool
}

func mountLine(line string) (m mount, ok bool) {
	before, after, found := strings.Cut(line, " - ")
	fields, more := strings.Fields(before), strings.Fields(after)
	if !found || len(fields) < 6 || len(more) < 3 {
		return m, false
	}
	return mount{at: fields[4], kind: more[0], options: more[2], writable: slices.Contains(strings.Split(fields[5], ","), "rw")}, true
}

// bounded reports whether writes to a mount are limited. The workspace has a quota of its own, or none.
func (m *mount) bounded() bool {
	options := strings.Split(m.options, ",")
	has := func(name string) bool {
		return slices.ContainsFunc(options, func(o string) bool { return strings.HasPrefix(o, name+"=") && o != name+"=0" })
	}
	switch {
	case !m.writable, m.at == isolation.Workspace, m.kind == "proc", m.kind == "sysfs":
		return true
	case m.kind == "tmpfs":
		return has("size") && has("nr_inodes")
	case m.kind == "devpts":
		return has("max")
	}
	return false
}
