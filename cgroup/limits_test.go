// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestLimitsBecomeCgroupFileContents(t *testing.T) {
	t.Parallel()
	full := Limits{
		Memory: 64 << 20, MemoryHigh: 48 << 20, Swap: 1 << 20, OOM: OOMSession, CPU: 150_000, CPUWeight: 50, Pids: 77, IOWeight: 60,
		IORead: 10 << 20, IOWrite: 5 << 20,
	}
	for name, tc := range map[string]struct{ got, want []Setting }{
		"all programs": {full.Programs("8:0"), []Setting{
			{"memory.max", "67108864"},
			{"memory.high", "50331648"},
			{"memory.swap.max", "1048576"},
			{"memory.oom.group", "1"},
			{"cpu.max", "150000 100000"},
			{"pids.max", "77"},
			{"io.max", "8:0 rbps=10485760 wbps=5242880"},
		}},
		"without a device": {new(Limits{Memory: 1, IORead: 1}).Programs(""), []Setting{
			{"memory.max", "1"}, {"memory.high", "max"}, {"memory.swap.max", "0"}, {"memory.oom.group", "0"}, {"cpu.max", "max 100000"}, {"pids.max", "max"},
		}},
		"nothing is limited": {new(Limits{}).Programs("8:0"), []Setting{
			{"memory.max", "max"}, {"memory.high", "max"}, {"memory.swap.max", "max"}, {"memory.oom.group", "0"}, {"cpu.max", "max 100000"}, {"pids.max", "max"},
		}},
		"one way of io":  {[]Setting{new(Limits{IORead: 7}).Programs("8:0")[6]}, []Setting{{"io.max", "8:0 rbps=7 wbps=max"}}},
		"no io any more": {[]Setting{LiftIO("8:0")}, []Setting{{"io.max", "8:0 rbps=max wbps=max"}}},
		"the box": {full.Box(), []Setting{
			{"memory.max", "201326592"},
			{"pids.max", "141"},
			{"cpu.weight", "50"},
			{"io.weight", "default 60"},
			{"cgroup.max.descendants", "1024"},
			{"cgroup.max.depth", "2"},
		}},
		"as many processes as there can be": {new(Limits{Pids: 1 << 22}).Box()[1:2], []Setting{{"pids.max", "4194304"}}},
		"a box without limits": {new(Limits{}).Box(), []Setting{
			{"memory.max", "max"},
			{"pids.max", "max"},
			{"cpu.weight", "100"},
			{"io.weight", "default 100"},
			{"cgroup.max.descendants", "1024"},
			{"cgroup.max.depth", "2"},
		}},
		"one program":               {new(Limits{Memory: 5, Pids: 6, CPU: 7000, OOM: OOMProgram}).Program(), []Setting{{"memory.max", "5"}, {"pids.max", "6"}, {"cpu.max", "7000 100000"}, {"memory.oom.group", "1"}}},
		"a program without its own": {new(Limits{OOM: OOMProcess}).Program(), nil},
	} {
		if diff := cmp.Diff(tc.want, tc.got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}

func TestCgroupFilesAreParsed(t *testing.T) {
	t.Parallel()
	events := []byte("populated 1\nfrozen 0\npopulated_x 7\nbroken\n")
	for key, want := range map[string]uint64{"populated": 1, "frozen": 0, "nothing": 0, "broken": 0} {
		if got := KeyOf(events, key); got != want {
			t.Errorf("%s: %d, want %d", key, got, want)
		}
	}
	read, written := ioOf([]byte("8:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=5 dios=6\n254:16 rbytes=1 wbytes=x\n253:0\n"))
	if read != 11 || written != 20 {
		t.Errorf("read %d, written %d", read, written)
	}
	if now() <= 0 || now() > 100*365*24*time.Hour {
		t.Errorf("it is %v, want now() > 0 and now() <= 100 * 365 * 24 * time.Hour", now())
	}
}
