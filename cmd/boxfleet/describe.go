// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/relay/api"
)

// doctorEvery is how often doctor is asked, which examines the host.
const doctorEvery = time.Minute

// describe says what this node has and what of it is taken.
func (a *agent) describe(ctx context.Context, sessions []api.Session) (*api.FleetNode, error) {
	status, err := a.boxd.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("boxd: %w", err)
	}
	n := &api.FleetNode{
		Version: status.Version, State: api.FleetNodeReady, Sessions: status.Sessions, MaxSessions: status.MaxSessions, Waiting: status.Queue.Waiting,
		CPUs: runtime.NumCPU(), Capabilities: a.capabilities(),
		IDRanges: a.cfg.IDRanges, IDRangesUsed: status.Sessions,
	}
	switch status.State {
	case "off":
		n.State, n.Reason = api.FleetNodeOff, status.Off
	case "failed":
		n.State, n.Reason = api.FleetNodeFailed, strings.Join(status.Degraded, "; ")
	}
	for _, w := range status.Warm {
		n.IDRangesUsed += w.Ready
		if w.Ready > 0 {
			n.Warm = append(n.Warm, w.Profile)
		}
	}
	for i := range sessions {
		n.MemoryReserved += uint64(max(sessions[i].Memory, 0))
		n.CPUsReserved += sessions[i].CPUs
		n.PidsReserved += sessions[i].Pids
	}
	n.Owners = ownersOf(sessions)
	n.Agent = api.FleetAgent{Streams: a.streams.Load(), Failed: a.failed.Load(), Refused: a.refused.Load(), GivenUp: a.gaveUp.Load()}
	n.Pids, n.PidsUsed = pids()
	n.Memory, n.MemoryAvailable = memory()
	var disk unix.Statfs_t
	if unix.Statfs(a.cfg.Disk, &disk) == nil {
		n.Disk, n.DiskAvailable = disk.Blocks*uint64(disk.Bsize), disk.Bavail*uint64(disk.Bsize)
	}
	n.Pressure = api.Pressure{CPU: pressure("cpu"), Memory: pressure("memory"), IO: pressure("io")}
	return n, nil
}

// maxOwners is of how many owners a node says what they have, so that an announcement stays a small message.
const maxOwners = 1000

// ownersOf adds up what owners have, those with most sessions first.
func ownersOf(sessions []api.Session) []api.FleetOwner {
	sums := map[string]*api.FleetOwner{}
	for i := range sessions {
		s := &sessions[i]
		o := sums[s.Owner]
		if o == nil {
			o = &api.FleetOwner{Owner: s.Owner}
			sums[s.Owner] = o
		}
		o.Sessions++
		o.CPUs += s.CPUs
		o.Memory += uint64(max(s.Memory, 0))
		o.Pids += s.Pids
	}
	list := sortedOwners(sums)
	return list[:min(len(list), maxOwners)]
}

func sortedOwners(sums map[string]*api.FleetOwner) []api.FleetOwner {
	list := []api.FleetOwner{}
	for _, o := range sums {
		list = append(list, *o)
	}
	slices.SortFunc(list, func(a, b api.FleetOwner) int {
		return cmp.Or(cmp.Compare(b.Sessions+b.Lost, a.Sessions+a.Lost), cmp.Compare(a.Owner, b.Owner))
	})
	return list
}

// examine asks doctor now and then what this host can, and who may speak for whom, until ctx ends. On a host that has much to do that takes longer than a
// lease holds, so no announcement waits for it.
func (a *agent) examine(ctx context.Context) {
	for {
		again := doctorEvery
		if report, err := a.boxd.Doctor(ctx); err == nil {
			can := []string{}
			for _, c := range report.Checks {
				if c.Level == "ok" {
					can = append(can, c.Name)
				}
			}
			a.mu.Lock()
			a.can = can
			a.mu.Unlock()
		} else {
			again = renewEvery // it has what it had
		}
		_ = a.refreshFleet(ctx) // it has what it had
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return
		}
	}
}

// canE2B is the capability of a node that serves E2B's protocol to gateways. No check of doctor has this name.
const canE2B = "e2b"

// canLangBot is the same for LangBot's protocol.
const canLangBot = "langbot"

// capabilities are the checks of doctor that are in order, none before it has answered, and what is configured.
func (a *agent) capabilities() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	can := slices.Clone(a.can)
	if a.cfg.E2B {
		can = append(can, canE2B)
	}
	if a.cfg.LangBot {
		can = append(can, canLangBot)
	}
	return can
}

// memory reads how much there is and how much of it is available (proc_meminfo(5)); 0: nobody knows.
func memory() (total, available uint64) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		n, err := strconv.ParseUint(fields[1], 10, 64)
		if err != nil {
			continue
		}
		switch fields[0] {
		case "MemTotal:":
			total = n << 10
		case "MemAvailable:":
			available = n << 10
		}
	}
	return total, available
}

// pids reads how many processes and threads the kernel allows, and how many there are (proc(5)); 0: nobody knows.
func pids() (limit, used int) {
	for _, name := range []string{"pid_max", "threads-max"} {
		text, err := os.ReadFile("/proc/sys/kernel/" + name)
		if err != nil {
			continue
		}
		if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && (limit == 0 || n < limit) {
			limit = n
		}
	}
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return limit, 0
	}
	if fields := strings.Fields(string(text)); len(fields) > 3 { // the fourth is those that run, a slash, and all
		_, all, _ := strings.Cut(fields[3], "/")
		if used, err = strconv.Atoi(all); err != nil {
			used = 0
		}
	}
	return limit, used
}

// pressure reads the average of "some" over ten seconds; 0 where the kernel has no PSI.
func pressure(name string) float64 {
	text, err := os.ReadFile("/proc/pressure/" + name)
	if err != nil {
		return 0
	}
	_, rest, ok := strings.Cut(string(text), "some avg10=")
	if !ok {
		return 0
	}
	number, _, _ := strings.Cut(rest, " ")
	n, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0
	}
	return n
}
