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

// Whichever program involved in the networks of boxes is killed, at any time: each box soon reaches again what it may, and never
// anything else, such as what another may.
func TestWhateverIsKilledABoxReachesWhatItMay(t *testing.T) {
	w := newWorld(t)
	z := newZone(t, w)
	for _, name := range []string{"www.allowed.example.", "forbidden.example.", "other.example."} {
		z.set(name, web4)
	}
	d := boxtest.Start(t, boxtest.Lasting+byName)
	other := map[string]string{"one": "two", "two": "one"}
	may := map[string]string{"one": "www.allowed.example", "two": "forbidden.example"} // which are the other way round for the second
	for id, host := range may {
		req := egress(id, host+" tcp 80 443")
		req.NetworkStrict = new(true)
		d.NewSession(t, req)
		script := strings.NewReplacer("www.allowed.example", host, "forbidden.example", may[other[id]]).Replace(tries)
		in(t, d, id, "cat > tries.py <<'END'\nLARGE = 1\n"+script+"END\ntouch said\n")
		if _, _, err := d.StartProcess(t.Context(), id, "tries", &api.ProcessRequest{Argv: []string{"sh", "-c", "exec python3 tries.py < /dev/null"}}); err != nil {
			t.Fatal(err)
		}
	}
	allowed := func(id string) (n int) {
		n, err := strconv.Atoi(strings.TrimSpace(in(t, d, id, "grep -c '^allowed .200 web "+may[id]+"' /workspace/said; true")))
		must(t, err)
		return n
	}
	reach := func(when string) {
		for id := range may {
			before := -1
			boxtest.Eventually(t, when+" box "+id+" reaches the destinations that its rules allow", func() bool {
				n := allowed(id)
				if before < 0 {
					before = n
				}
				return n > before+2
			})
		}
	}
	reach("at first")
	chance := rand.New(rand.NewPCG(1, 2))
	killKeeper := func() {
		boxtest.Eventually(t, "a keeper runs", func() bool { return unix.Kill(d.Keeper(), unix.SIGKILL) == nil }) // the file may name the one before
	}
	victims := map[string]func(){
		"boxnames": func() { must(t, unix.Kill(program(t, d, "boxnames"), unix.SIGKILL)) },
		"boxnet": func() {
			pid, exists := 0, false
			boxtest.Eventually(t, "boxnet runs", func() bool {
				pid, exists = boxnet(t, d)
				return exists
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
		reach("after the end of " + name)
	}
	for id := range may {
		if said := in(t, d, id, "grep -v '^allowed' /workspace/said | grep -e \" '200 \" -e 'tcp ' | head; true"); said != "" {
			t.Errorf("%s has reached forbidden destinations:\n%s", id, said)
		}
		for _, want := range []string{"forbidden '403", "elsewhere 'error: [Errno", "unknown 'error: [Errno"} {
			if n := strings.TrimSpace(in(t, d, id, "grep -c -F \""+want+"\" /workspace/said; true")); n == "0" {
				t.Errorf(`%s: nothing was refused as %q: %s, want n != "0"`,
					id, want, in(t, d, id, "grep -v '^allowed' /workspace/said | sort | uniq -c | sort -n | tail"))
			}
		}
	}
}
