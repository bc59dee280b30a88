// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/cgroup"
)

func failed() *StepError {
	return &StepError{Step: StepMountSource, Item: "/home/u", Errno: 13, Refused: &Refusal{"mounts[0].source", "/etc", "no system directory"}}
}

func allLimits() cgroup.Limits {
	return cgroup.Limits{Memory: 1, MemoryHigh: 2, Swap: 3, OOM: cgroup.OOMSession, CPU: 4, CPUWeight: 5, Pids: 6, IOWeight: 7, IORead: 8, IOWrite: 1 << 63}
}

// numberedRequest is a request with its number.
type numberedRequest struct {
	Number  uint32
	Message KeeperRequest
}

func (a *numberedRequest) Encode() []byte { return EncodeKeeperRequest(a.Number, a.Message) }

func decodeNumberedRequest(b []byte) (*numberedRequest, error) {
	number, m, err := DecodeKeeperRequest(b)
	return &numberedRequest{number, m}, err
}

// replied is a reply with the number of its request.
type replied struct {
	Number  uint32
	Message KeeperReply
}

func (r *replied) Encode() []byte { return EncodeKeeperReply(r.Number, r.Message) }

func decodeReplied(b []byte) (*replied, error) {
	number, m, err := DecodeKeeperReply(b)
	return &replied{number, m}, err
}

// endpoint returns an Endpoint with an address of size bytes.
func endpoint(size int) Endpoint {
	return Endpoint{Address: bytes.Repeat([]byte{11}, size), Port: 443}
}

func keeperRequests() []*numberedRequest {
	spec := valid()
	return []*numberedRequest{
		{0, &Hello{Version: KeeperVersion}},
		{1, &Launch{Spec: spec}},
		{2, &Launch{Spec: Spec{Grouped: true, Owner: cgroup.Owner{Name: "0123456789abcdef", Memory: 1 << 40, CPU: 7}, Scope: "/sys/fs/cgroup/x", Space: spec.Key, Lent: []string{spec.Key + "/mnt/a", spec.Key + "/mnt/b"}, Image: "tree", Writable: true}}},
		{3, &EndBox{Key: spec.Key, RemoveWork: true}},
		{1<<32 - 1, &CheckHost{}},
		{4, &LookHost{}},
		{5, &SetLimits{Key: spec.Key, Limits: allLimits(), Work: Quota{1, 2}}},
		{6, &Leave{}},
		{7, &Quit{}},
		{8, &ListBoxes{After: spec.Key}},
		{9, &ListBoxes{}},
		{10, &Adopt{Key: spec.Key}},
		{10, &WhyEnded{Key: spec.Key}},
		{11, &SetHostname{Key: spec.Key, Hostname: "s1"}},
		{12, &Reclaim{Key: spec.Key}},
		{13, &ChangeMount{
			Key: spec.Key, Op: MountReplace, Caller: Caller{UID: 1, GID: 2, Groups: []uint32{3}}, IDs: []uint64{1 << 40, 7}, Force: true,
			Mount: Mount{Source: "/a", Target: "/mnt/b/c", Writable: true, Owner: 4, NoSymlinks: true, Bound: true}, Made: "/mnt/b", Target: "/mnt/b/c",
		}},
		{14, &ChangeMount{Key: spec.Key, Op: MountTidy}},
		{15, &ChangeMount{Key: spec.Key, Op: MountRemove, Mount: Mount{Target: SkillsDir + "/a"}, Skill: Skill{Owner: "uid1", BuiltIn: true, Tree: "t"}}},
		{16, &ChangeMount{Key: spec.Key, Op: MountLook, Mount: Mount{Target: "/mnt/b"}}},
		{18, &ChangeMount{Key: spec.Key, Op: MountMissing, Mount: Mount{Source: "/a", Target: "/mnt"}, Made: "/mnt/b", Target: "/mnt/b"}},
		{17, &ChangeSpace{Key: spec.Key, Quota: Quota{1 << 40, 16}, Remove: true}},
		{18, &ReadQuota{Key: spec.Key, Source: "/srv/a"}},
		{19, &KeepTree{Key: spec.Key, Tree: "tree"}},
		{20, &RemoveTree{Tree: "tree"}},
		{21, &SetOwnerLimits{Owner: cgroup.Owner{Name: "7-0123456789abcdef", Memory: 1, CPU: 2}}},
		{22, &SetNetwork{Key: spec.Key, Network: NetworkSpec{Kind: NetworkEgress, NamesOnly: true, Names: 7, Strict: true, Connections: 8, Bandwidth: 1 << 40, Rules: []string{"1.2.3.0/24 tcp"}}}},
		{23, &PinAddresses{Key: spec.Key, Pins: []Pin{{To: endpoint(4), UDP: true, Seconds: 60}, {To: endpoint(16), Seconds: 1}}}},
		{24, &ReadTraffic{Key: spec.Key}},
		{25, &ReadRefusals{Key: spec.Key}},
		{26, &OpenSockets{Key: spec.Key, Strict: true}},
		{27, &Dial{Key: spec.Key, To: endpoint(16)}},
		{29, &ChangeSnapshots{Key: spec.Key, Op: SnapshotRestore, Name: "before"}},
		{28, &DialLoopback{Key: spec.Key, To: endpoint(4)}},
	}
}

func decodeNumberedNetworkRequest(b []byte) (*numberedRequest, error) {
	number, m, err := DecodeNetworkRequest(b)
	return &numberedRequest{number, m}, err
}

// networkRequests returns the requests to boxnet that boxd itself does not send.
func networkRequests() []*numberedRequest {
	key := valid().Key
	return []*numberedRequest{
		{1, &AttachNetwork{Key: key, Network: NetworkSpec{Kind: NetworkEgress, Rules: []string{"13.0.0.0/8 tcp 80"}}}},
		{2, &DetachNetwork{Key: key}},
		{3, &AdoptNetworks{Keys: []string{key, key}}},
		{4, &CheckNetwork{}},
		{5, &DialLoopback{Key: key, To: endpoint(4)}},
	}
}

func keeperReplies() []*replied {
	return []*replied{
		{98, &Ended{Cause: CauseFileLocks}},
		{99, &Attached{Resolv: "nameserver 127.0.0.1\n"}},
		{0, &Greeting{Version: KeeperVersion, Flags: []string{"-a=b", "-c="}, Programs: "1.2 3.4"}},
		{0, &Greeting{Version: KeeperVersion}},
		{1, &Mounted{ID: 1 << 40, Made: "/mnt/b", Below: true, Attrs: 0x2007}},
		{2, &Mounted{Busy: true, Source: "/srv/a", Users: []MountUser{{7, "python3", "cwd", "/mnt/b"}, {8, "sh", "3", "/mnt/b/c"}}}},
		{3, &Mounted{ID: 7, IDs: []uint64{1 << 40, 7}}},
		{9, &Listed{Keys: []string{"a", "b"}, More: true}},
		{10, &Listed{}},
		{1, &Launched{PID: 42, IDBase: 0x70000000, Group: "/sys/fs/cgroup/x"}},
		{7, &Host{Controllers: []string{"cpu", "memory"}}},
		{8, &Host{NoGroups: "none", Workspaces: "/w", Quota: "store", NoQuota: "no", QuotaHint: "do", Bounds: []string{"/srv", "", "/home", "no"}}},
		{2, &Done{}},
		{3, &Checked{Checks: []Check{{Name: "kernel", Level: CheckWarn, Detail: "old", Hint: "upgrade"}, {}}}},
		{4, &Checked{}},
		{5, failed()},
		{6, &StepError{Step: StepClone, Errno: 11}},
		{7, &Disk{1, 2, 3, 4}},
		{8, &Traffic{Addresses: [][]byte{endpoint(4).Address, endpoint(16).Address}, Received: Amount{1, 2}, Sent: Amount{3, 4}}},
		{9, &Refusals{Packets: 7, Crowded: 5, Lately: []RefusedDestination{{endpoint(4), false, 3}, {endpoint(16), true, 4}}}},
		{10, &SocketsOpened{IPv6: true}},
		{11, &Dialed{}},
		{12, &Snapshots{List: []Snapshot{{"before", 1 << 60, 4096, 2}, {}}}},
	}
}

func boxRequests() []*BoxRequest {
	return []*BoxRequest{
		{Setup: &Setup{
			Hostname: "box", Scratch: Scratch{1 << 20, 64}, Rlimits: []Rlimit{{1, 2, 3}, {4, 5, 6}},
			Mounts: []SetupMount{{Target: Workspace, Writable: true}, {Target: "/data"}}, Grouped: true, Adoptable: true, Filter: []byte{1, 0, 255},
		}},
		{Setup: &Setup{Filter: []byte{}}},
		{Setup: &Setup{Filter: []byte{}, Resolv: "nameserver 127.0.0.1\n", View: View{Memory: 1, Swap: 2, CPU: 3, Pids: 4, Processors: 5, Possible: "0-3"}}},
		{ID: 1, Spawn: &Command{
			Argv: []string{"sh", "", "{file}"}, Env: []string{"A=1", "B="}, Dir: Workspace, ScriptArg: 2, ScriptSuffix: ".sh",
			Stdin: StdinPipe, Timeout: time.Minute, KeepRunning: true, Output: Output{Head: 1, Tail: 2}, Limits: allLimits(),
			Durable: true, Terminal: &Terminal{Rows: 24, Cols: 80}, Continue: 7,
		}},
		{ID: 8, Spawn: &Command{Argv: []string{"x"}, ScriptArg: -1, Durable: true, Direct: true, Wait: true, Output: Output{Tail: 1}}},
		{ID: 2, Spawn: &Command{Argv: []string{strings.Repeat("x", 1<<17)}, ScriptArg: -1}},
		{ID: 3, Signal: 15},
		{ID: 4, Kill: true},
		{Freeze: &Freeze{On: true}},
		{Freeze: &Freeze{}},
		{ID: 5, Pace: &Pace{Wait: true, Taken: [2]uint64{1 << 40, 3}}},
		{Private: true},
		{Times: &Times{Grace: time.Minute, Parked: true, Idle: time.Hour, End: time.Second}},
		{ID: 6, CloseInput: true},
		{ID: 7, Forget: true},
		{Adopt: 1},
		{Setup: &Setup{Filter: []byte{}, User: User{Name: "user", Home: "/home/user"}}},
		{ID: 9, Spawn: &Command{Argv: []string{"x"}, Dir: "/usr/lib", ScriptArg: -1, Existing: true}},
		{ID: 10, Spawn: &Command{Argv: []string{"x"}, ScriptArg: -1, Merged: true}},
		{ID: 11, Spawn: &Command{Argv: []string{"x"}, Dir: "/usr/lib", ScriptArg: -1, Existing: true, Merged: true}},
		{ID: 12, Spawn: &Command{Argv: []string{"x"}, ScriptArg: -1, Durable: true, Output: Output{Tail: MaxSpool}, Spool: true}},
		{ID: 13, Spawn: &Command{Argv: []string{"x"}, Dir: "/usr/lib", ScriptArg: -1, Durable: true, Output: Output{Head: 1, Tail: 1}, Existing: true, Merged: true, Spool: true}},
		{Setup: &Setup{Filter: []byte{}, Root: true}},
		{Setup: &Setup{Filter: []byte{}, User: User{Name: "user", Home: "/home/user"}, Root: true}},
		{ID: 14, Spawn: &Command{Argv: []string{"x"}, ScriptArg: -1, Root: true}},
		{ID: 15, Spawn: &Command{Argv: []string{"x"}, Dir: "/usr/lib", ScriptArg: -1, Durable: true, Output: Output{Head: 1, Tail: MaxSpool}, Existing: true, Merged: true, Spool: true, Root: true}},
		{UnshareCgroup: true},
	}
}

func boxReplies() []*BoxReply {
	return []*BoxReply{
		{Ready: true},
		{Failed: failed()},
		{ID: 1, Failed: &StepError{Step: StepExec, Item: "nosuch", Errno: 2}},
		{ID: 2, Started: true, PID: 7},
		{ID: 3, Exited: &Exit{
			Reason: ReasonSignaled, Signal: 9, Duration: time.Second, UserTime: 2, SystemTime: 3, MaxRSS: 4, Leftovers: 5, LeftRunning: true,
			Grouped: true, Use: cgroup.Use{User: 6, System: 7, MemoryPeak: 8, PidsPeak: 9, Read: 10, Write: 11, OOMKills: 12}, Disks: [2]Disk{{1, 2, 3, 4}, {5, 6, 7, 8}},
			Streams: [2]StreamEnd{{Total: 100, CutFrom: 10, CutTo: 90}, {Total: 5}},
		}, Attached: [2]bool{true, false}},
		{ID: 4, Exited: &Exit{Code: 255}},
		{Quiet: true},
		{Frozen: true},
		{Frozen: true, Failed: failed()},
		{ID: 5, Program: &ProgramState{PID: 3, Input: true, Taken: 4, Terminal: true, Output: Output{Head: 1, Tail: 2}}},
		{ID: 6, Program: &ProgramState{Exited: &Exit{Code: 3}}},
		{Adopted: &Adopted{Version: 1, Next: 9, Frozen: true, LeftRunning: true, Private: true}},
		{Unshared: true},
	}
}

// check encodes and decodes each message, and records the types of the messages.
func check[T any](t *testing.T, seen map[byte]bool, list []T, encode func(T) []byte, decode func([]byte) (T, error)) {
	t.Helper()
	for _, want := range list {
		data := encode(want)
		seen[data[0]] = true
		got, err := decode(data)
		if err != nil {
			t.Errorf("%+v: %v", want, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("a message changes on its way (-sent +received):\n%s", diff)
		}
		for n := range data {
			if m, err := decode(data[:n]); err == nil {
				t.Errorf("the first %d of %d bytes are a message: m = %+v, want an error", n, len(data), m)
			}
		}
		if m, err := decode(append(bytes.Clone(data), 0)); err == nil {
			t.Errorf("a byte too much is a message: m = %+v, want an error", m)
		}
	}
}

func TestEveryMessageSurvivesItsWay(t *testing.T) {
	t.Parallel()
	seen := map[byte]bool{}
	// One long command is enough: truncating it at every byte is quadratic.
	requests := boxRequests()
	long := requests[5]
	if got, err := DecodeBoxRequest(long.Encode()); err != nil || !cmp.Equal(long, got) {
		t.Errorf("a long command: err = %v, want no error and long == got", err)
	}
	check(t, seen, keeperRequests(), (*numberedRequest).Encode, decodeNumberedRequest)
	check(t, seen, networkRequests(), (*numberedRequest).Encode, decodeNumberedNetworkRequest)
	check(t, seen, keeperReplies(), (*replied).Encode, decodeReplied)
	check(t, seen, append(requests[:5:5], requests[6:]...), (*BoxRequest).Encode, DecodeBoxRequest)
	check(t, seen, boxReplies(), (*BoxReply).Encode, DecodeBoxReply)
	for _, span := range [][2]uint8{{msgHello, msgCheckNetwork}, {msgSetup, msgUnshared}} {
		for kind := span[0]; kind <= span[1]; kind++ {
			if !seen[kind] && kind != msgNetworkWords {
				t.Errorf("no message of type %d has been tried", kind)
			}
		}
	}
}

func TestNoReplyOfPID1OutgrowsItsBuffer(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<16)
	reply := BoxReply{ID: 1, Failed: &StepError{Step: StepMount, Item: long, Refused: &Refusal{long, long, long}}}
	for _, r := range append(boxReplies(), &reply) {
		if n := len(r.Encode()); n > MaxBoxReply {
			t.Errorf("%d bytes, more than %d", n, MaxBoxReply)
		}
	}
}

func TestNonsenseFromPID1IsRefused(t *testing.T) {
	t.Parallel()
	exit := func(spoil func(*Exit)) []byte {
		x := Exit{Streams: [2]StreamEnd{{Total: 10}}}
		spoil(&x)
		return (&BoxReply{ID: 1, Exited: &x}).Encode()
	}
	for name, data := range map[string][]byte{
		"empty":                  {},
		"unknown type":           {255},
		"keeper's message":       EncodeKeeperReply(1, &Done{}),
		"own request":            (&BoxRequest{ID: 1, Kill: true}).Encode(),
		"failure of no program":  append([]byte{msgSpawnFailed}, (&BoxReply{Failed: failed()}).Encode()...),
		"a long item":            append([]byte{msgSetupFailed, 0, 1, 2, 0, 0}, make([]byte, MaxItem+1+4+1)...),
		"unknown reason":         exit(func(x *Exit) { x.Reason = ReasonOOM + 1 }),
		"negative duration":      exit(func(x *Exit) { x.Duration = -1 }),
		"cut backwards":          exit(func(x *Exit) { x.Streams[0].CutFrom, x.Streams[0].CutTo = 5, 4 }),
		"cut beyond the end":     exit(func(x *Exit) { x.Streams[0].CutTo = 11 }),
		"attached is no boolean": append(exit(func(*Exit) {})[:len(exit(func(*Exit) {}))-1], 2),
	} {
		if m, err := DecodeBoxReply(data); err == nil {
			t.Errorf("%s: accepted as %+v", name, m)
		}
	}
}

func TestNonsenseToPID1IsRefused(t *testing.T) {
	t.Parallel()
	spawn := func(spoil func(*Command)) []byte {
		c := Command{Argv: []string{"true"}, ScriptArg: -1}
		spoil(&c)
		return (&BoxRequest{ID: 1, Spawn: &c}).Encode()
	}
	for name, data := range map[string][]byte{
		"no arguments":              spawn(func(c *Command) { c.Argv = nil }),
		"script is not argument":    spawn(func(c *Command) { c.ScriptArg = 1 }),
		"script before the first":   spawn(func(c *Command) { c.ScriptArg = -2 }),
		"unknown stdin":             spawn(func(c *Command) { c.Stdin = StdinPipe + 1 }),
		"negative timeout":          spawn(func(c *Command) { c.Timeout = -1 }),
		"a user of no name":         (&BoxRequest{Setup: &Setup{Filter: []byte{}, User: User{Home: "/home/user"}}}).Encode(),
		"a home outside":            (&BoxRequest{Setup: &Setup{Filter: []byte{}, User: User{Name: "user", Home: "/etc"}}}).Encode(),
		"signal 0":                  (&BoxRequest{ID: 1}).Encode(),
		"signal 65":                 (&BoxRequest{ID: 1, Signal: 65}).Encode(),
		"adopted by version 0":      {msgTakeOver, 0, 0, 0, 0},
		"negative grace":            (&BoxRequest{Times: &Times{Grace: -1}}).Encode(),
		"stdin that nobody keeps":   spawn(func(c *Command) { c.Stdin = StdinPipe }),
		"a terminal for nobody":     spawn(func(c *Command) { c.Terminal = &Terminal{Rows: 1, Cols: 1} }),
		"waiting with no room":      spawn(func(c *Command) { c.Durable, c.Wait = true, true }),
		"more output than any":      spawn(func(c *Command) { c.Output.Head = MaxOutput + 1 }),
		"more on disk than any":     spawn(func(c *Command) { c.Durable, c.Spool, c.Output.Tail = true, true, MaxSpool+1 }),
		"more than merged":          spawn(func(c *Command) { c.Merged, c.Output.Tail = true, MaxOutput+1 }),
		"on disk for nobody":        spawn(func(c *Command) { c.Spool = true }),
		"direct output on disk":     spawn(func(c *Command) { c.Durable, c.Direct, c.Spool = true, true, true }),
		"direct input that is kept": spawn(func(c *Command) { c.Durable, c.Direct, c.Stdin = true, true, StdinPipe }),
		"a terminal of no width":    spawn(func(c *Command) { c.Durable, c.Stdin, c.Terminal = true, StdinPipe, &Terminal{Rows: 1} }),
		"more arguments than fit":   {msgSpawn, 1, 0, 0, 0, 255, 255, 255, 255},
	} {
		if m, err := DecodeBoxRequest(data); err == nil {
			t.Errorf("%s: accepted as %+v", name, m)
		}
	}
}

func TestNonsenseToTheKeeperIsRefused(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]KeeperRequest{
		"an unknown network":       &SetNetwork{Network: NetworkSpec{Kind: NetworkHost + 1}},
		"an address of no family":  &Dial{To: endpoint(5)},
		"no address":               &DialLoopback{},
		"a pin without an address": &PinAddresses{Pins: []Pin{{Seconds: 1}}},
		"more pins than fit":       &PinAddresses{Pins: slices.Repeat([]Pin{{To: endpoint(4), Seconds: 1}}, MaxPins+1)},
		"no change of a mount":     &ChangeMount{},
	} {
		if _, m, err := DecodeKeeperRequest(EncodeKeeperRequest(1, m)); err == nil {
			t.Errorf("%s: accepted as %+v", name, m)
		}
	}
	for name, m := range map[string]KeeperReply{
		"an address of the box of no family": &Traffic{Addresses: [][]byte{{1, 2, 3}}},
		"a refusal of no address":            &Refusals{Lately: []RefusedDestination{{}}},
	} {
		if _, m, err := DecodeKeeperReply(EncodeKeeperReply(1, m)); err == nil {
			t.Errorf("%s: accepted as %+v", name, m)
		}
	}
	for name, data := range map[string][]byte{
		"empty":                {},
		"unknown type":         {255, 1, 0, 0, 0},
		"words about networks": {msgNetworkWords, 1, 0, 0, 0},
		"a reply":              EncodeKeeperReply(1, &Done{}),
		"one to boxnet":        EncodeKeeperRequest(1, &CheckNetwork{}),
	} {
		if _, m, err := DecodeKeeperRequest(data); err == nil {
			t.Errorf("%s: accepted as %+v", name, m)
		}
	}
}

// fuzz checks what peers rely on: a decoder never panics, and what it accepts is the one encoding
// of the message it returns.
func fuzz[T interface{ Encode() []byte }](f *testing.F, seeds []T, decode func([]byte) (T, error)) {
	f.Helper()
	for _, s := range seeds {
		f.Add(s.Encode())
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decode(bytes.Clone(data))
		if err == nil && !bytes.Equal(m.Encode(), data) {
			t.Errorf("%x is read as %+v, which is %x, want an error or m.Encode() equal to data", data, m, m.Encode())
		}
	})
}

func FuzzDecodeKeeperRequest(f *testing.F)  { fuzz(f, keeperRequests(), decodeNumberedRequest) }
func FuzzDecodeNetworkRequest(f *testing.F) { fuzz(f, networkRequests(), decodeNumberedNetworkRequest) }
func FuzzDecodeKeeperReply(f *testing.F)    { fuzz(f, keeperReplies(), decodeReplied) }
func FuzzDecodeBoxRequest(f *testing.F)     { fuzz(f, boxRequests(), DecodeBoxRequest) }
func FuzzDecodeBoxReply(f *testing.F)       { fuzz(f, boxReplies(), DecodeBoxReply) }
