// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// tries is a program in a box that keeps making allowed and forbidden requests, and appends each answer to a file as a line.
const tries = visit + `
import time
socket.setdefaulttimeout(5)
with open("/workspace/said", "a") as out:
    while True:
        for what, args in (("allowed", ("web", "www.allowed.example", "www.allowed.example")), ("forbidden", ("web", "` + web4 + `", "forbidden.example")),
                ("elsewhere", ("raw", "` + other4 + `", "80", "x")), ("unknown", ("web", "other.example", "other.example"))):
            try: said = visit(*args)
            except OSError as e: said = "error: " + str(e)
            print(what, repr(said), file=out, flush=True)
        time.sleep(0.02)
`

// rounds returns how often a program is killed; SURVIVAL_KILLS sets another number.
func rounds() int {
	if n, err := strconv.Atoi(os.Getenv("SURVIVAL_KILLS")); err == nil {
		return n
	}
	return 8
}

// Whichever program involved in a box's network is killed, at any time: the box soon reaches again what it may, and never
// anything else.
func TestWhateverIsKilledABoxReachesWhatItMay(t *testing.T) {
	w := newWorld(t)
	z := newZone(t, w)
	for _, name := range []string{"www.allowed.example.", "forbidden.example.", "other.example."} {
		z.set(name, web4)
	}
	d := boxtest.Start(t, boxtest.Lasting+byName)
	req := egress("one", "www.allowed.example tcp 80 443")
	req.NetworkStrict = new(true)
	d.NewSession(t, req)
	in(t, d, "one", "cat > tries.py <<'END'\nLARGE = 1\n"+tries+"END\ntouch said\n")
	if _, _, err := d.StartProcess(t.Context(), "one", "tries", &api.ProcessRequest{Argv: []string{"sh", "-c", "exec python3 tries.py < /dev/null"}}); err != nil {
		t.Fatal(err)
	}
	allowed := func() (n int) {
		n, err := strconv.Atoi(strings.TrimSpace(in(t, d, "one", "grep -c '^allowed .200 web www.allowed.example' /workspace/said; true")))
		must(t, err)
		return n
	}
	boxtest.Eventually(t, "the box reaches what it may", func() bool { return allowed() > 2 })
	chance := rand.New(rand.NewPCG(1, 2))
	killKeeper := func() {
		boxtest.Eventually(t, "a keeper runs", func() bool { return unix.Kill(d.Keeper(), unix.SIGKILL) == nil }) // the file may name the one before
	}
	victims := map[string]func(){
		"boxnames": func() { must(t, unix.Kill(program(t, d, "boxnames"), unix.SIGKILL)) },
		"boxnet": func() {
			pid, there := 0, false
			boxtest.Eventually(t, "boxnet runs", func() bool {
				pid, there = boxnet(t, d)
				return there
			})
			_ = unix.Kill(pid, unix.SIGKILL)
		},
		"the keeper": killKeeper,
		"boxd": func() {
			d.Kill()
			d.Restart()
		},
		"the keeper with boxd": func() {
			killKeeper()
			d.Kill()
			d.Restart()
		},
	}
	names := []string{"boxnames", "boxnet", "the keeper", "boxd", "the keeper with boxd"}
	for i := range rounds() {
		name := names[chance.IntN(len(names))]
		if i < len(names) {
			name = names[i]
		}
		victims[name]()
		before := -1
		boxtest.Eventually(t, "after the end of "+name+" the box reaches what it may", func() bool {
			n := allowed()
			if before < 0 {
				before = n
			}
			return n > before+2
		})
	}
	said := in(t, d, "one", "grep -v '^allowed' /workspace/said | grep -e \" '200 \" -e 'tcp ' | head; true")
	if said != "" {
		t.Errorf("it has reached what it may not:\n%s", said)
	}
	for _, want := range []string{"forbidden '403", "elsewhere 'error: [Errno", "unknown 'error: [Errno"} {
		if n := strings.TrimSpace(in(t, d, "one", "grep -c -F \""+want+"\" /workspace/said; true")); n == "0" {
			t.Errorf("nothing was refused as %q: %s", want, in(t, d, "one", "grep -v '^allowed' /workspace/said | sort | uniq -c | sort -n | tail"))
		}
	}
}
