// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/cgroup"
	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// A boxd that sends more requests than the keeper handles at once has to wait: the memory of the keeper does not grow with them.
func TestRequestsBeyondTheKeepersConcurrencyWait(t *testing.T) { //nolint:paralleltest // it counts goroutines of the process
	const requests = maxRequests + 40
	k := &keeper{boxes: map[string]*box{}}
	own, far, err := fdpass.Pair(fdpass.MaxInline)
	if err != nil {
		t.Fatal(err)
	}
	boxd, err := fdpass.FromFD(far, fdpass.MaxInline)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.converse(t.Context(), own)
		own.Close()
	}()
	k.mu.Lock() // nothing is answered until it is unlocked
	for number := range uint32(requests) {
		if err := boxd.Send(isolation.EncodeKeeperRequest(number, &isolation.ListBoxes{})); err != nil {
			t.Fatal(err)
		}
	}
	answering := func() int {
		stacks := make([]byte, 4<<20)
		return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte(".(*keeper).answer("))
	}
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	most := 0
	for end := time.Now().Add(time.Minute); most < maxRequests && time.Now().Before(end); <-ticker.C {
		most = answering()
	}
	for range 5 { // for more to begin, which must not
		<-ticker.C
	}
	if most = max(most, answering()); most != maxRequests {
		t.Errorf("%d of %d requests are handled at once, want %d", most, requests, maxRequests)
	}
	k.mu.Unlock()
	for range requests {
		if _, _, err := boxd.Recv(false); err != nil {
			t.Fatalf("a request that waited has no answer: %v", err)
		}
	}
	boxd.Close()
	<-done
}

func TestInvalidBoxKeysAreRefused(t *testing.T) {
	t.Parallel()
	about := map[string]func(key string) isolation.KeeperRequest{
		"end":      func(key string) isolation.KeeperRequest { return &isolation.EndBox{Key: key} },
		"limits":   func(key string) isolation.KeeperRequest { return &isolation.SetLimits{Key: key} },
		"adopt":    func(key string) isolation.KeeperRequest { return &isolation.Adopt{Key: key} },
		"hostname": func(key string) isolation.KeeperRequest { return &isolation.SetHostname{Key: key} },
		"reclaim":  func(key string) isolation.KeeperRequest { return &isolation.Reclaim{Key: key} },
		"traffic":  func(key string) isolation.KeeperRequest { return &isolation.ReadTraffic{Key: key} },
		"refusals": func(key string) isolation.KeeperRequest { return &isolation.ReadRefusals{Key: key} },
		"network":  func(key string) isolation.KeeperRequest { return &isolation.SetNetwork{Key: key} },
		"pins":     func(key string) isolation.KeeperRequest { return &isolation.PinAddresses{Key: key} },
		"sockets":  func(key string) isolation.KeeperRequest { return &isolation.OpenSockets{Key: key} },
		"dial":     func(key string) isolation.KeeperRequest { return &isolation.Dial{Key: key} },
		"loopback": func(key string) isolation.KeeperRequest { return &isolation.DialLoopback{Key: key} },
		"list":     func(key string) isolation.KeeperRequest { return &isolation.ListBoxes{After: key} },
		"keep": func(key string) isolation.KeeperRequest {
			return &isolation.KeepTree{Key: key, Tree: "abcdefghijklmnopqrstuvwxyz"}
		},
	}
	for name, ask := range about {
		for key, fine := range map[string]bool{
			strings.Repeat("a1", 16): true, "": name == "list", // an empty key asks for the first page
			"..": false, "/etc": false, "../../" + strings.Repeat("a", 26): false, strings.Repeat("a", 31): false, strings.Repeat("A", 32): false,
		} {
			if err := refuse(ask(key)); (err == nil) != fine {
				t.Errorf("%s %q: err = %v, want (err == nil) == fine", name, key, err)
			}
		}
	}
	for name, fine := range map[string]bool{
		"0": true, "4294967295-0123456789abcdef": true, "": false, "01": false, "1-": false, "1-0123": false,
		"4294967296": false, "1-0123456789abcde/": false, "1/box-a": false, "owner-1": false, "+1": false, "1-0123456789abcdef-": false,
	} {
		if err := refuse(&isolation.SetOwnerLimits{Owner: cgroup.Owner{Name: name}}); (err == nil) != fine {
			t.Errorf("limits of owner %q: err = %v, want (err == nil) == fine", name, err)
		}
		for _, ask := range []string{"limits", "end"} {
			if err := refuse(about[ask](cgroup.OwnerPrefix + name)); err == nil {
				t.Errorf("%s of owner %q", ask, name)
			}
		}
	}
}

// A box's cgroup is the one in its record, below that of its owner: the user's own, or one with
// another owner's name.
func TestARecordNamesTheOwner(t *testing.T) {
	t.Parallel()
	for group, want := range map[string]string{
		"/sys/fs/cgroup/a/owner-7/box-k": "7", "/sys/fs/cgroup/a/owner-7-0123456789abcdef/box-k": "7-0123456789abcdef",
		"/sys/fs/cgroup/a/owner-77/box-k": "7", "/sys/fs/cgroup/a/owner-8-0123456789abcdef/box-k": "7", "/sys/fs/cgroup/a/owner-7-../box-k": "7", "": "7", "/box-k": "7",
	} {
		if got := ownerName(&record{Owner: 7, Group: group}); got != want {
			t.Errorf("%s: %s, want %s", group, got, want)
		}
	}
}
